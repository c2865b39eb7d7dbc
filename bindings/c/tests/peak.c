/* Lent memory is not copied: prints the most bytes that this process had. Arguments: token file, folder, port of an agent, "send" or "receive". */
#include "check.h"

#define SIZE (1UL << 30)

static unsigned long peak(void)
{
    char line[200];
    unsigned long kib = 0;
    FILE *status = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, status) != NULL && sscanf(line, "VmHWM: %lu", &kib) != 1)
        ;
    fclose(status);
    return kib * 1024;
}

int main(int count, char **arguments)
{
    CHECK(count == 5);
    bool receives = strcmp(arguments[4], "receive") == 0;
    unsigned char *memory = malloc(SIZE);
    CHECK(memory != NULL);
    if (!receives)
        for (size_t at = 0; at < SIZE; ++at)
            memory[at] = (unsigned char)(at / 7);
    ropewalk_agent *agent = NULL;
    OK(ropewalk_agent_new("127.0.0.1:0", arguments[1], &agent, &error));
    if (receives)
        OK(ropewalk_agent_lend_writable(agent, "memory", memory, SIZE, &error));
    else
        OK(ropewalk_agent_lend(agent, "memory", memory, SIZE, &error));
    char own[100], other[4096];
    snprintf(own, sizeof own, "%s 127.0.0.1:%u buffer:memory 0 0-%lu", receives ? "reader" : "writer",
             (unsigned)ropewalk_agent_port(agent), SIZE - 1);
    if (receives)
        snprintf(other, sizeof other, "writer 127.0.0.1:%s \"%s/from\" 0 0-%lu", arguments[3], arguments[2], SIZE - 1);
    else
        snprintf(other, sizeof other, "reader 127.0.0.1:%s null: 0 0-%lu", arguments[3], SIZE - 1);
    ropewalk_transfer *transfer = ropewalk_transfer_new();
    OK(ropewalk_transfer_token_of(transfer, agent, &error));
    OK(ropewalk_transfer_schedule_line(transfer, own, &error));
    OK(ropewalk_transfer_schedule_line(transfer, other, &error));
    OK(ropewalk_transfer_wait(transfer, -1, &error));
    CHECK(ropewalk_transfer_data_sent(transfer) == SIZE);
    ropewalk_transfer_free(transfer);
    ropewalk_agent_free(agent);
    CHECK(!receives || memcmp(memory + SIZE - 7, "the end", 7) == 0);
    free(memory);
    printf("%lu\n", peak());
    return 0;
}
