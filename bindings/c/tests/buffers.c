/* Memory of this program as source and destination. Arguments: token file, folder, port of an agent. */
#include <dirent.h>
#include <signal.h>
#include <unistd.h>

#include "check.h"

enum { SIZE = 3000000 };

static void row(ropewalk_transfer *transfer, const char *form, const char *host_port, const char *object, unsigned long start)
{
    char line[4096];
    snprintf(line, sizeof line, form, host_port, object, start, (unsigned long)SIZE - 1);
    OK(ropewalk_transfer_schedule_line(transfer, line, &error));
}

static ropewalk_transfer *new_transfer(ropewalk_agent *agent)
{
    ropewalk_transfer *transfer = ropewalk_transfer_new();
    OK(ropewalk_transfer_token_of(transfer, agent, &error));
    return transfer;
}

/* To a file by rows, and part of it back. */
static void by_rows(char **arguments, ropewalk_agent *agent, const unsigned char *data)
{
    char here[64], there[64], file[2048];
    snprintf(here, sizeof here, "127.0.0.1:%u", (unsigned)ropewalk_agent_port(agent));
    snprintf(there, sizeof there, "127.0.0.1:%s", arguments[3]);
    snprintf(file, sizeof file, "\"%s/rows\"", arguments[2]);
    ropewalk_transfer *transfer = new_transfer(agent);
    OK(ropewalk_transfer_option(transfer, "verify", "sink", &error));
    row(transfer, "writer %s %s 0 %lu-%lu", here, "buffer:data", 0);
    row(transfer, "reader %s %s 0 %lu-%lu", there, file, 0);
    OK(ropewalk_transfer_wait(transfer, -1, &error));
    CHECK(ropewalk_transfer_data_sent(transfer) == SIZE);

    unsigned char *half = malloc(SIZE / 2);
    OK(ropewalk_agent_lend_writable(agent, "half", half, SIZE / 2, &error));
    ropewalk_row writer = {.role = ROPEWALK_WRITER,
                           .host = "127.0.0.1",
                           .port = (uint16_t)atoi(arguments[3]),
                           .file_offset = SIZE / 2,
                           .start = SIZE / 2,
                           .end = SIZE};
    ropewalk_row reader = {.role = ROPEWALK_READER,
                           .host = "127.0.0.1",
                           .port = ropewalk_agent_port(agent),
                           .uri = "buffer:half",
                           .start = SIZE / 2,
                           .end = SIZE};
    snprintf(file, sizeof file, "%s/rows", arguments[2]);
    writer.uri = file;
    OK(ropewalk_transfer_schedule(transfer, &writer, &error));
    OK(ropewalk_transfer_schedule(transfer, &reader, &error));
    OK(ropewalk_transfer_wait(transfer, -1, &error));
    ropewalk_range range[2];
    size_t count = 0;
    OK(ropewalk_agent_written(agent, "half", range, 2, &count, &error));
    CHECK(count == 1 && range[0].start == 0 && range[0].end == SIZE / 2);
    CHECK(ropewalk_agent_is_busy(agent, "half") == 0 && ropewalk_agent_is_busy(agent, "none") == -1);
    OK(ropewalk_agent_take_back(agent, "half", &error));
    CHECK(memcmp(half, data + SIZE / 2, SIZE / 2) == 0);
    free(half);

    /* A row of more than there is names the buffer, its length and the range. */
    row(transfer, "writer %s %s 1 %lu-%lu", here, "buffer:data", 0);
    row(transfer, "reader %s %s 0 %lu-%lu", there, "null:", 0);
    REFUSED(ropewalk_transfer_wait(transfer, -1, &error), ROPEWALK_INPUT,
            "buffer data has 3000000 bytes, and bytes 1-3000000 of it are asked for");
    ropewalk_transfer_free(transfer);
}

/* As copies: a buffer to a file, that file to another buffer, whatever its length is. */
static void by_places(char **arguments, ropewalk_agent *agent, const unsigned char *data)
{
    char path[2048];
    snprintf(path, sizeof path, "%s/places", arguments[2]);
    ropewalk_place buffer = {.host = "127.0.0.1", .port = ropewalk_agent_port(agent), .path = "buffer:data"};
    ropewalk_place file = {.host = "127.0.0.1", .port = (uint16_t)atoi(arguments[3]), .path = path};
    ropewalk_transfer *transfer = new_transfer(agent);
    OK(ropewalk_transfer_from(transfer, &buffer, &error));
    OK(ropewalk_transfer_to(transfer, &file, &error));
    OK(ropewalk_transfer_wait(transfer, -1, &error));
    CHECK(ropewalk_transfer_data_sent(transfer) == SIZE);
    unsigned char *copy = calloc(SIZE + 10, 1);
    OK(ropewalk_agent_lend_writable(agent, "copy", copy, SIZE + 10, &error));
    buffer.path = "buffer:copy";
    OK(ropewalk_transfer_from(transfer, &file, &error));
    OK(ropewalk_transfer_to(transfer, &buffer, &error));
    OK(ropewalk_transfer_wait(transfer, -1, &error));
    OK(ropewalk_agent_take_back(agent, "copy", &error));
    CHECK(memcmp(copy, data, SIZE) == 0 && copy[SIZE] == 0);
    free(copy);
    buffer.port = 0;
    REFUSED(ropewalk_transfer_to(transfer, &buffer, &error), ROPEWALK_INPUT, "host and port");
    ropewalk_transfer_free(transfer);
}

/* Whether SIGPIPE is blocked in a thread of this process. */
static bool blocks_sigpipe(const char *thread)
{
    char path[300], line[200];
    unsigned long long blocked = 0;
    snprintf(path, sizeof path, "/proc/self/task/%s/status", thread);
    FILE *status = fopen(path, "r");
    /* One that has ended blocks all. */
    if (status == NULL)
        return true;
    while (fgets(line, sizeof line, status) != NULL && sscanf(line, "SigBlk: %llx", &blocked) != 1)
        ;
    fclose(status);
    return (blocked >> (SIGPIPE - 1) & 1) != 0;
}

/* A write of the library to a closed socket ends no program: its threads block SIGPIPE, and this one has what it had. */
static void sockets_end_no_program(void)
{
    char own[30];
    snprintf(own, sizeof own, "%ld", (long)getpid());
    CHECK(!blocks_sigpipe(own));
    DIR *threads = opendir("/proc/self/task");
    int others = 0;
    for (struct dirent *entry = readdir(threads); entry != NULL; entry = readdir(threads))
        if (entry->d_name[0] != '.' && strcmp(entry->d_name, own) != 0) {
            CHECK(blocks_sigpipe(entry->d_name));
            ++others;
        }
    CHECK(others > 0);
    closedir(threads);
}

int main(int count, char **arguments)
{
    CHECK(count == 4);
    unsigned char *data = malloc(SIZE);
    for (size_t at = 0; at < SIZE; ++at)
        data[at] = (unsigned char)(at / 7);
    ropewalk_agent *agent = NULL;
    OK(ropewalk_agent_new("127.0.0.1:0", arguments[1], &agent, &error));
    OK(ropewalk_agent_lend(agent, "data", data, SIZE, &error));
    REFUSED(ropewalk_agent_lend(agent, "data", data, SIZE, &error), ROPEWALK_INPUT, "lent already");
    REFUSED(ropewalk_agent_lend(agent, "a b", data, SIZE, &error), ROPEWALK_INPUT, "letters");
    REFUSED(ropewalk_agent_lend(agent, "null", NULL, 1, &error), ROPEWALK_INPUT, "NULL");
    REFUSED(ropewalk_agent_take_back(agent, "none", &error), ROPEWALK_INPUT, "no buffer");
    sockets_end_no_program();
    by_rows(arguments, agent, data);
    sockets_end_no_program();
    by_places(arguments, agent, data);
    ropewalk_agent_free(agent);
    free(data);
    ropewalk_agent_free(NULL);
    REFUSED(ropewalk_agent_new("here", NULL, &agent, &error), ROPEWALK_INPUT, "address");
    puts("ok");
    return 0;
}
