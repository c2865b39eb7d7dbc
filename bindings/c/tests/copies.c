/* A tree from one agent to another, with options. Arguments: token file, folder, ports of two agents. */
#include <poll.h>

#include "check.h"

int main(int count, char **arguments)
{
    CHECK(count == 5);
    char from[2048], to[2048];
    snprintf(from, sizeof from, "%s/tree", arguments[2]);
    snprintf(to, sizeof to, "%s/copy", arguments[2]);
    ropewalk_place source = {.host = "127.0.0.1", .port = (uint16_t)atoi(arguments[3]), .path = from};
    ropewalk_place destination = {.host = "127.0.0.1", .port = (uint16_t)atoi(arguments[4]), .path = to};
    ropewalk_transfer *transfer = ropewalk_transfer_new();
    OK(ropewalk_transfer_token_file(transfer, arguments[1], &error));
    OK(ropewalk_transfer_option(transfer, "verify", "replicas", &error));
    OK(ropewalk_transfer_option(transfer, "limit", "1GB/s", &error));
    OK(ropewalk_transfer_option(transfer, "atomic", "true", &error));
    REFUSED(ropewalk_transfer_option(transfer, "verify", "well", &error), ROPEWALK_INPUT, "none, fragment");
    REFUSED(ropewalk_transfer_option(transfer, "colour", "red", &error), ROPEWALK_INPUT, "verify");
    OK(ropewalk_transfer_from(transfer, &source, &error));
    OK(ropewalk_transfer_to(transfer, &destination, &error));
    REFUSED(ropewalk_transfer_schedule_line(transfer, "writer a:1 /x 0 0-9", &error), ROPEWALK_INPUT, "not both");
    REFUSED(ropewalk_transfer_from(transfer, NULL, &error), ROPEWALK_INPUT, "NULL");
    ropewalk_error *error = NULL;
    while (ropewalk_transfer_wait(transfer, 0, &error) == ROPEWALK_UNDER_WAY) {
        struct pollfd polled = {.fd = ropewalk_transfer_descriptor(transfer), .events = POLLIN};
        CHECK(polled.fd >= 0 && poll(&polled, 1, 60000) == 1);
    }
    if (error != NULL)
        fprintf(stderr, "%s\n", ropewalk_error_message(error));
    CHECK(error == NULL && ropewalk_transfer_descriptor(transfer) == -1);
    CHECK(ropewalk_transfer_data_sent(transfer) == 9);
    char *report = ropewalk_transfer_report(transfer);
    CHECK(report != NULL && strstr(report, "\"outcome\":\"done\"") != NULL);
    ropewalk_string_free(report);
    ropewalk_transfer_free(transfer);
    puts("ok");
    return 0;
}
