/* CEP Figure 2 by the calls of Table 1. Arguments: token file, folder, ports of the seven agents, and a standing master if there is one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cep.h"

enum { PART = 1024 };

static char uris[7][4096];

static void row(char **arguments, int agent, ropewalk_role role, const char *file, uint64_t offset, uint64_t start, uint64_t end)
{
    snprintf(uris[agent], sizeof uris[agent], "file://%s/%s", arguments[2], file);
    dbsInfo dbs = {.role = role,
                   .host = "127.0.0.1",
                   .port = (uint16_t)atoi(arguments[3 + agent]),
                   .uri = uris[agent],
                   .file_offset = offset,
                   .start = start,
                   .end = end};
    schedule(&dbs);
}

int main(int count, char **arguments)
{
    if (count < 10 || count > 11 || !cep_token_file(arguments[1]) || (count == 11 && !cep_master(arguments[10]))) {
        fprintf(stderr, "%s\n", count < 10 || count > 11 ? "usage: table1 TOKEN FOLDER PORT... [MASTER]" : cep_error());
        return 2;
    }
    /* What is wrong with a row the next transfer() says, and nothing else. */
    schedule(NULL);
    if (transfer() || cep_error() == NULL || strstr(cep_error(), "NULL") == NULL) {
        fprintf(stderr, "no row was not refused: %s\n", cep_error());
        return 3;
    }
    row(arguments, 0, ROPEWALK_WRITER, "half1", 0, 0, PART);
    row(arguments, 1, ROPEWALK_WRITER, "half1", PART, PART, 2 * PART);
    row(arguments, 2, ROPEWALK_WRITER, "half2", 0, 2 * PART, 3 * PART);
    row(arguments, 3, ROPEWALK_WRITER, "half2", PART, 3 * PART, 4 * PART);
    row(arguments, 4, ROPEWALK_READER, "copy1", 0, 0, 2 * PART);
    row(arguments, 5, ROPEWALK_READER, "copy2", 2 * PART, 2 * PART, 4 * PART);
    row(arguments, 6, ROPEWALK_READER, "copy3", 0, 0, 4 * PART);
    if (!transfer()) {
        fprintf(stderr, "%s\n", cep_error());
        return 1;
    }
    printf("%llu\n", data_sent());
    return 0;
}
