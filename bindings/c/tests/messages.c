/* Messages over two interfaces, with and without an event loop. Arguments: token file, folder (not used). */
#include <poll.h>

#include "check.h"

enum { LONG = 5000000 };

static void await(int descriptor)
{
    struct pollfd polled = {.fd = descriptor, .events = POLLIN};
    CHECK(poll(&polled, 1, 60000) == 1);
}

int main(int count, char **arguments)
{
    CHECK(count >= 3);
    const char *ends[2] = {"127.0.0.1:0", "127.0.0.2:0"};
    ropewalk_listener *listener = NULL;
    OK(ropewalk_listener_new(ends, 2, arguments[1], &listener, &error));
    char *addresses[2] = {ropewalk_listener_address(listener, 0), ropewalk_listener_address(listener, 1)};
    CHECK(addresses[0] != NULL && addresses[1] != NULL && ropewalk_listener_address(listener, 2) == NULL);
    ropewalk_socket *near_end = NULL, *far_end = NULL;
    CHECK(ropewalk_listener_accept(listener, 0, &far_end, NULL) == ROPEWALK_UNDER_WAY);
    const char *peers[2] = {addresses[0], addresses[1]};
    OK(ropewalk_socket_connect(peers, 2, arguments[1], &near_end, &error));
    await(ropewalk_listener_descriptor(listener));
    OK(ropewalk_listener_accept(listener, -1, &far_end, &error));

    /* By a thread that waits. */
    char space[100];
    size_t length = 0;
    uint64_t number = 99;
    OK(ropewalk_socket_send_start(near_end, "hello", 5, &number, &error));
    CHECK(number != 99);
    OK(ropewalk_socket_receive(far_end, space, sizeof space, -1, &length, &error));
    CHECK(length == 5 && memcmp(space, "hello", 5) == 0);
    CHECK(ropewalk_socket_receive(far_end, space, sizeof space, 1, &length, NULL) == ROPEWALK_UNDER_WAY);

    /* In an event loop: short, empty and long messages. */
    unsigned char *message = malloc(LONG), *copy = malloc(LONG);
    for (size_t at = 0; at < LONG; ++at)
        message[at] = (unsigned char)(at / 11);
    size_t sizes[3] = {3, 0, LONG};
    for (int at = 0; at < 3; ++at)
        OK(ropewalk_socket_send_start(near_end, message, sizes[at], NULL, &error));
    for (int at = 0; at < 3; ++at) {
        ropewalk_result result;
        while ((result = ropewalk_socket_receive(far_end, copy, LONG, 0, &length, NULL)) == ROPEWALK_UNDER_WAY)
            await(ropewalk_socket_descriptor(far_end));
        CHECK(result == ROPEWALK_OK && length == sizes[at] && memcmp(copy, message, length) == 0);
    }
    /* One that is too long stays. */
    OK(ropewalk_socket_send_start(near_end, message, 200, NULL, &error));
    REFUSED(ropewalk_socket_receive(far_end, space, sizeof space, -1, &length, &error), ROPEWALK_INPUT, "200 bytes");
    OK(ropewalk_socket_receive(far_end, copy, LONG, 60000, &length, &error));
    CHECK(length == 200);
    /* An answer, and the end. */
    OK(ropewalk_socket_send_start(far_end, "bye", 3, NULL, &error));
    OK(ropewalk_socket_receive(near_end, space, sizeof space, -1, &length, &error));
    CHECK(length == 3);
    OK(ropewalk_socket_finish(near_end, &error));
    CHECK(ropewalk_socket_is_sent(near_end, number));
    CHECK(ropewalk_socket_receive(far_end, space, sizeof space, -1, &length, NULL) == ROPEWALK_END);
    CHECK(ropewalk_socket_receive(far_end, space, sizeof space, 0, &length, NULL) == ROPEWALK_END);
    REFUSED(ropewalk_socket_send(near_end, NULL, 1, &error), ROPEWALK_INPUT, "NULL");
    REFUSED(ropewalk_socket_send(NULL, "", 0, &error), ROPEWALK_INPUT, "NULL");
    REFUSED(ropewalk_listener_new(NULL, 0, NULL, &listener, &error), ROPEWALK_INPUT, "no address");
    ropewalk_socket_free(near_end);
    CHECK(ropewalk_socket_send(far_end, "", 0, NULL) == ROPEWALK_PEER);
    ropewalk_socket_free(far_end);
    ropewalk_listener_free(listener);
    ropewalk_string_free(addresses[0]);
    ropewalk_string_free(addresses[1]);
    free(message);
    free(copy);
    puts("ok");
    return 0;
}
