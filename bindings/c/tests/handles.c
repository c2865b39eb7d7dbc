/* Two transfers at once in an event loop, and what is refused. Arguments: token file, folder, ports of two agents. */
#include <poll.h>

#include "check.h"

enum { HALF = 1000000 };

static void progress(void *user, uint64_t delivered, uint64_t total)
{
    CHECK(delivered <= total && total == HALF);
    ++*(int *)user;
}

static ropewalk_transfer *begin(char **arguments, const char *name, uint64_t start, int *calls)
{
    char from[4096], to[4096];
    snprintf(from, sizeof from, "%s/data", arguments[2]);
    snprintf(to, sizeof to, "reader 127.0.0.1:%s \"%s/%s\" 0 %llu-%llu", arguments[4], arguments[2], name,
             (unsigned long long)start, (unsigned long long)start + HALF - 1);
    ropewalk_error *error = NULL;
    ropewalk_transfer *transfer = ropewalk_transfer_new();
    ropewalk_transfer_on_progress(transfer, progress, calls);
    CHECK(ropewalk_transfer_token_file(transfer, arguments[1], &error) == ROPEWALK_OK);
    /* Slow enough for a look at the progress. */
    CHECK(ropewalk_transfer_limit(transfer, HALF, &error) == ROPEWALK_OK);
    ropewalk_row writer = {.role = ROPEWALK_WRITER,
                           .host = "127.0.0.1",
                           .port = (uint16_t)atoi(arguments[3]),
                           .uri = from,
                           .file_offset = start,
                           .start = start,
                           .end = start + HALF};
    CHECK(ropewalk_transfer_schedule(transfer, &writer, &error) == ROPEWALK_OK);
    CHECK(ropewalk_transfer_schedule_line(transfer, to, &error) == ROPEWALK_OK);
    CHECK(ropewalk_transfer_descriptor(transfer) == -1);
    CHECK(ropewalk_transfer_wait(transfer, 0, &error) == ROPEWALK_UNDER_WAY);
    CHECK(ropewalk_transfer_descriptor(transfer) >= 0 && error == NULL);
    return transfer;
}

static void expect(ropewalk_result result, ropewalk_result wanted, ropewalk_error **error, const char *text)
{
    CHECK(result == wanted && *error != NULL);
    if (strstr(ropewalk_error_message(*error), text) == NULL) {
        fprintf(stderr, "%s: %s\n", text, ropewalk_error_message(*error));
        exit(1);
    }
    ropewalk_error_free(*error);
    *error = NULL;
}

static void refusals(char **arguments)
{
    ropewalk_error *error = NULL;
    ropewalk_transfer *transfer = ropewalk_transfer_new();
    expect(ropewalk_transfer_schedule(transfer, NULL, &error), ROPEWALK_INPUT, &error, "NULL");
    expect(ropewalk_transfer_schedule(NULL, NULL, &error), ROPEWALK_INPUT, &error, "NULL");
    ropewalk_row row = {.role = 7, .host = "a", .port = 1, .uri = "/x", .end = 1};
    expect(ropewalk_transfer_schedule(transfer, &row, &error), ROPEWALK_INPUT, &error, "role");
    row = (ropewalk_row){.role = ROPEWALK_READER, .host = "a\" b", .port = 1, .uri = "/x", .end = 1};
    expect(ropewalk_transfer_schedule(transfer, &row, &error), ROPEWALK_INPUT, &error, "white space");
    row = (ropewalk_row){.role = ROPEWALK_READER, .host = "a", .port = 1, .uri = "\xff", .end = 1};
    expect(ropewalk_transfer_schedule(transfer, &row, &error), ROPEWALK_INPUT, &error, "UTF-8");
    expect(ropewalk_transfer_schedule_line(transfer, "reader a:1 x 0 0-9", &error), ROPEWALK_INPUT, &error, "x");
    expect(ropewalk_transfer_token_file(transfer, arguments[2], &error), ROPEWALK_HOST, &error, "token file");
    expect(ropewalk_transfer_wait(transfer, -1, &error), ROPEWALK_INPUT, &error, "writer");
    /* Nothing listens there; the place for the error may be missing. */
    CHECK(ropewalk_transfer_token_file(transfer, arguments[1], NULL) == ROPEWALK_OK);
    CHECK(ropewalk_transfer_schedule_line(transfer, "writer 127.0.0.1:1 /x 0 0-9", NULL) == ROPEWALK_OK);
    CHECK(ropewalk_transfer_schedule_line(transfer, "reader 127.0.0.1:2 /y 0 0-9", NULL) == ROPEWALK_OK);
    CHECK(ropewalk_transfer_wait(transfer, -1, NULL) == ROPEWALK_NETWORK);
    error = NULL;
    CHECK(ropewalk_transfer_wait(transfer, -1, &error) == ROPEWALK_NETWORK);
    CHECK(strcmp(ropewalk_error_kind(error), "unreachable") == 0);
    ropewalk_error_free(error);
    ropewalk_transfer_free(transfer);
    ropewalk_transfer_free(NULL);
    ropewalk_error_free(NULL);
    ropewalk_string_free(NULL);
    CHECK(ropewalk_transfer_data_sent(NULL) == 0 && ropewalk_error_message(NULL) == NULL);
}

int main(int count, char **arguments)
{
    CHECK(count == 5);
    refusals(arguments);
    int calls[2] = {0, 0};
    ropewalk_transfer *transfers[2] = {begin(arguments, "head", 0, &calls[0]), begin(arguments, "tail", HALF, &calls[1])};
    int running = 2;
    while (running > 0) {
        struct pollfd polled[2];
        for (int at = 0; at < 2; ++at) {
            polled[at].fd = ropewalk_transfer_descriptor(transfers[at]);
            polled[at].events = POLLIN;
        }
        CHECK(poll(polled, 2, 60000) > 0);
        for (int at = 0; at < 2; ++at) {
            if (polled[at].fd == -1)
                continue;
            ropewalk_error *error = NULL;
            ropewalk_result result = ropewalk_transfer_wait(transfers[at], 0, &error);
            if (error != NULL)
                fprintf(stderr, "%s\n", ropewalk_error_message(error));
            CHECK(result == ROPEWALK_OK || result == ROPEWALK_UNDER_WAY);
            if (result == ROPEWALK_OK)
                --running;
        }
    }
    for (int at = 0; at < 2; ++at) {
        CHECK(ropewalk_transfer_data_sent(transfers[at]) == HALF && calls[at] > 0);
        char *report = ropewalk_transfer_report(transfers[at]);
        CHECK(report != NULL && strstr(report, "\"delivered_bytes\":1000000") != NULL);
        ropewalk_string_free(report);
        ropewalk_transfer_free(transfers[at]);
    }
    /* One that is cancelled ends without its data, and one that runs is cancelled when it is released. */
    int calls_of_cancelled = 0;
    ropewalk_transfer *cancelled = begin(arguments, "cancelled", 0, &calls_of_cancelled);
    ropewalk_transfer_cancel(cancelled);
    ropewalk_error *why = NULL;
    CHECK(ropewalk_transfer_wait(cancelled, -1, &why) > ROPEWALK_END && why != NULL);
    ropewalk_error_free(why);
    ropewalk_transfer_free(cancelled);
    ropewalk_transfer_free(begin(arguments, "cancelled", 0, &calls_of_cancelled));
    puts("ok");
    return 0;
}
