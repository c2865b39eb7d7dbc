/* A region over two nodes of this process. Arguments: token file, folder. */
#include "check.h"

enum { SIZE = 1 << 20 };

int main(int count, char **arguments)
{
    CHECK(count >= 3);
    char path[1000];
    snprintf(path, sizeof path, "%s/held", arguments[2]);
    FILE *file = fopen(path, "wb");
    CHECK(file != NULL);
    for (int at = 0; at < SIZE / 2; ++at)
        fputc(at % 251, file);
    CHECK(fclose(file) == 0);

    const char *any[1] = {"127.0.0.1:0"};
    ropewalk_region_server *servers[2] = {NULL, NULL};
    char *addresses[2];
    unsigned char *memory = malloc(SIZE);
    for (int at = 0; at < SIZE; ++at)
        memory[at] = (unsigned char)(at % (SIZE / 2) % 251);
    for (int at = 0; at < 2; ++at) {
        OK(ropewalk_region_server_new(any, 1, arguments[1], &servers[at], &error));
        addresses[at] = ropewalk_region_server_address(servers[at], 0);
        CHECK(addresses[at] != NULL && ropewalk_region_server_address(servers[at], 1) == NULL);
    }
    /* All in memory of one, the first half in a file of the other. */
    ropewalk_exposed whole = {.range = {0, SIZE}, .memory = memory};
    ropewalk_exposed half = {.range = {0, SIZE / 2}, .file = path};
    OK(ropewalk_region_server_serve(servers[0], "table", SIZE, ROPEWALK_ALL, &whole, 1, &error));
    OK(ropewalk_region_server_serve(servers[1], "table", SIZE, ROPEWALK_ALL, &half, 1, &error));
    REFUSED(ropewalk_region_server_serve(servers[0], "table", SIZE, ROPEWALK_ALL, &whole, 1, &error), ROPEWALK_INPUT,
            "already");
    const int none[2] = {7, -1};
    for (int at = 0; at < 2; ++at)
        REFUSED(ropewalk_region_server_serve(servers[0], "other", SIZE, none[at], &whole, 1, &error), ROPEWALK_INPUT,
                "rule");

    ropewalk_region *region = NULL;
    const char *nodes[2] = {addresses[0], addresses[1]};
    OK(ropewalk_region_connect("table", nodes, 2, arguments[1], &region, &error));
    CHECK(ropewalk_region_size(region) == SIZE);
    unsigned char *into = malloc(SIZE);
    OK(ropewalk_region_get(region, 0, into, SIZE, &error));
    for (int at = 0; at < SIZE; ++at)
        CHECK(into[at] == at % (SIZE / 2) % 251);

    /* Both holders have what is put. */
    OK(ropewalk_region_put(region, SIZE / 2 - 3, "across", 6, &error));
    for (int at = 0; at < 4; ++at) {
        OK(ropewalk_region_get(region, SIZE / 2 - 3, into, 6, &error));
        CHECK(memcmp(into, "across", 6) == 0);
    }
    OK(ropewalk_region_put_start(region, 10, "begun", 5, NULL, &error));
    ropewalk_request *put = NULL, *get = NULL;
    OK(ropewalk_region_put_start(region, 20, "later", 5, &put, &error));
    ropewalk_region_fence(region);
    ropewalk_range ranges[3] = {{10, 15}, {20, 25}, {SIZE - 1, SIZE}};
    OK(ropewalk_region_get_start(region, ranges, 3, into, &get, &error));
    OK(ropewalk_request_wait(get, -1, &error));
    CHECK(memcmp(into, "begunlater", 10) == 0);
    OK(ropewalk_request_wait(put, 60000, &error));
    OK(ropewalk_region_flush(region, &error));

    /* Values of ranges. */
    uint64_t value = 0;
    ropewalk_range row = {0, 4096};
    CHECK(ropewalk_region_wait(region, row, 3, 1, &value, NULL) == ROPEWALK_UNDER_WAY);
    OK(ropewalk_region_notify(region, row, 5, &error));
    OK(ropewalk_region_wait(region, row, 3, -1, &value, &error));
    CHECK(value == 5);

    REFUSED(ropewalk_region_get(region, SIZE - 1, into, 2, &error), ROPEWALK_INPUT, "not in the region");
    REFUSED(ropewalk_region_get(region, UINT64_MAX, into, 2, &error), ROPEWALK_INPUT, "2^64");
    REFUSED(ropewalk_region_get(region, 0, NULL, 2, &error), ROPEWALK_INPUT, "NULL");
    REFUSED(ropewalk_region_get(NULL, 0, into, 2, &error), ROPEWALK_INPUT, "NULL");
    REFUSED(ropewalk_request_wait(get, 0, &error), ROPEWALK_INPUT, "taken");
    REFUSED(ropewalk_region_server_withdraw(servers[0], "other", &error), ROPEWALK_INPUT, "no region");

    /* A node that serves no longer: its memory is ours again, and gets go to the other. */
    OK(ropewalk_region_server_withdraw(servers[0], "table", &error));
    CHECK(memcmp(memory + 10, "begun", 5) == 0);
    OK(ropewalk_region_get(region, 10, into, 5, &error));
    CHECK(memcmp(into, "begun", 5) == 0);
    CHECK(ropewalk_region_get(region, SIZE - 5, into, 5, NULL) == ROPEWALK_NETWORK);
    ropewalk_request_free(get);
    ropewalk_request_free(put);
    ropewalk_region_free(region);
    for (int at = 0; at < 2; ++at) {
        ropewalk_region_server_free(servers[at]);
        ropewalk_string_free(addresses[at]);
    }
    free(memory);
    free(into);
    puts("ok");
    return 0;
}
