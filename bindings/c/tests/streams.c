/* Byte streams over two interfaces: calls that wait, and an event loop. Arguments: token file, folder (not used). */
#include <poll.h>

#include "check.h"

enum { LONG = 3000000, MOST = 60000 };

static const char *token;

static short polled(int descriptor, short events, int milliseconds)
{
    struct pollfd one = {.fd = descriptor, .events = events};
    CHECK(poll(&one, 1, milliseconds) >= 0);
    return one.revents;
}

static ropewalk_stream *accepted(const ropewalk_stream_listener *listener)
{
    ropewalk_stream *stream = NULL;
    CHECK(polled(ropewalk_stream_listener_descriptor(listener), POLLIN, MOST) == POLLIN);
    OK(ropewalk_stream_listener_accept(listener, MOST, &stream, &error));
    return stream;
}

static size_t filled(const ropewalk_stream *stream, const unsigned char *bytes)
{
    size_t count = 0;
    CHECK(ropewalk_stream_write(stream, bytes, LONG, 0, &count, NULL) == ROPEWALK_UNDER_WAY);
    CHECK(count > 0 && count < LONG);
    return count;
}

/* As programs with a thread for each end do. */
static void waiting(const ropewalk_stream *near_end, const ropewalk_stream *far_end)
{
    char space[100];
    size_t count = 9;
    CHECK(ropewalk_stream_read(far_end, space, sizeof space, 0, &count, NULL) == ROPEWALK_UNDER_WAY && count == 0);
    CHECK((polled(ropewalk_stream_descriptor(far_end), POLLIN | POLLOUT, 0) & POLLIN) == 0);
    OK(ropewalk_stream_write(near_end, "hello", 5, -1, &count, &error));
    CHECK(count == 5);
    CHECK(polled(ropewalk_stream_descriptor(far_end), POLLIN, MOST) == POLLIN);
    OK(ropewalk_stream_read(far_end, space, 2, -1, &count, &error));
    CHECK(count == 2 && memcmp(space, "he", 2) == 0);
    OK(ropewalk_stream_read(far_end, space, sizeof space, MOST, &count, &error));
    CHECK(count == 3 && memcmp(space, "llo", 3) == 0);
    CHECK(ropewalk_stream_read(far_end, space, sizeof space, 1, &count, NULL) == ROPEWALK_UNDER_WAY);
    OK(ropewalk_stream_read(far_end, NULL, 0, -1, &count, &error));
    OK(ropewalk_stream_write(far_end, NULL, 0, -1, NULL, &error));
}

/* One thread writes, echoes and reads, with three descriptors that say what can go on. */
static void echo(const ropewalk_stream *near_end, const ropewalk_stream *far_end, const unsigned char *bytes)
{
    unsigned char *copy = malloc(LONG), held[30000];
    size_t sent = 0, kept = 0, answered = 0, received = 0, count;
    bool is_over = false;
    while (!is_over) {
        struct pollfd ends[2] = {
            {.fd = ropewalk_stream_descriptor(near_end), .events = sent < LONG ? POLLIN | POLLOUT : POLLIN},
            {.fd = ropewalk_stream_descriptor(far_end), .events = kept > 0 ? POLLOUT : POLLIN},
        };
        CHECK(poll(ends, 2, MOST) > 0);
        if ((ends[0].revents & POLLOUT) != 0) {
            ropewalk_result result = ropewalk_stream_write(near_end, bytes + sent, LONG - sent, 0, &count, NULL);
            CHECK(result == ROPEWALK_OK || result == ROPEWALK_UNDER_WAY);
            sent += count;
            CHECK((result == ROPEWALK_OK) == (sent == LONG));
            if (sent == LONG)
                OK(ropewalk_stream_shutdown(near_end, &error));
        }
        if ((ends[1].revents & POLLIN) != 0) {
            ropewalk_result result = ropewalk_stream_read(far_end, held, sizeof held, 0, &kept, NULL);
            answered = 0;
            if (result == ROPEWALK_END)
                OK(ropewalk_stream_shutdown(far_end, &error));
            else
                CHECK(result == (kept > 0 ? ROPEWALK_OK : ROPEWALK_UNDER_WAY));
        }
        if ((ends[1].revents & POLLOUT) != 0) {
            ropewalk_stream_write(far_end, held + answered, kept - answered, 0, &count, NULL);
            answered += count;
            if (answered == kept)
                kept = 0;
        }
        if ((ends[0].revents & POLLIN) != 0) {
            unsigned char more;
            unsigned char *to = received < LONG ? copy + received : &more;
            ropewalk_result result = ropewalk_stream_read(near_end, to, received < LONG ? LONG - received : 1, 0, &count, NULL);
            received += count;
            is_over = result == ROPEWALK_END;
            CHECK(is_over || result == (count > 0 ? ROPEWALK_OK : ROPEWALK_UNDER_WAY));
        }
    }
    CHECK(received == LONG && memcmp(copy, bytes, LONG) == 0);
    free(copy);
}

/* Streams that share a connection say what they are for, slow no other, and end in each of the ways there are. */
static void several(const char *const *peers, const ropewalk_stream_listener *listener, const unsigned char *bytes)
{
    ropewalk_streams *streams = NULL;
    ropewalk_stream *near_ends[2];
    OK(ropewalk_streams_connect(peers, 2, token, &streams, &error));
    OK(ropewalk_streams_open(streams, "first", 5, &near_ends[0], &error));
    OK(ropewalk_streams_open(streams, NULL, 0, &near_ends[1], &error));
    REFUSED(ropewalk_streams_open(streams, bytes, 1025, &near_ends[1], &error), ROPEWALK_INPUT, "1025 bytes");
    ropewalk_streams_free(streams);
    ropewalk_stream *far_ends[2] = {accepted(listener), accepted(listener)};
    size_t size = 9;
    const void *greeting = ropewalk_stream_greeting(far_ends[0], &size);
    CHECK(size == 5 && memcmp(greeting, "first", 5) == 0);
    CHECK(ropewalk_stream_greeting(far_ends[1], &size) != NULL && size == 0);

    size_t written = filled(near_ends[0], bytes), count, read = 0;
    CHECK(polled(ropewalk_stream_descriptor(near_ends[0]), POLLOUT, 0) == 0);
    /* Not all of it: the other is still not read. */
    CHECK(ropewalk_stream_write(near_ends[0], bytes, LONG, 1, &count, NULL) == ROPEWALK_UNDER_WAY && count == 0);
    waiting(near_ends[1], far_ends[1]);
    char space[1000];
    while (read < written) {
        OK(ropewalk_stream_read(far_ends[0], space, sizeof space, MOST, &count, &error));
        CHECK(memcmp(space, bytes + read, count) == 0);
        read += count;
    }
    CHECK((polled(ropewalk_stream_descriptor(near_ends[0]), POLLOUT, MOST) & POLLOUT) != 0);

    /* Bytes that are delivered, though the process could end now. */
    OK(ropewalk_stream_write(near_ends[0], "last", 4, -1, NULL, &error));
    OK(ropewalk_stream_finish(near_ends[0], MOST, &error));
    OK(ropewalk_stream_finish(near_ends[0], 0, &error));
    REFUSED(ropewalk_stream_write(near_ends[0], "x", 1, -1, &count, &error), ROPEWALK_INPUT, "closed on this side");
    OK(ropewalk_stream_read(far_ends[0], space, sizeof space, MOST, &count, &error));
    CHECK(count == 4);
    CHECK(ropewalk_stream_read(far_ends[0], space, sizeof space, MOST, NULL, NULL) == ROPEWALK_END);
    /* The other way goes on until its reader leaves. */
    OK(ropewalk_stream_write(far_ends[0], "answer", 6, -1, NULL, &error));
    OK(ropewalk_stream_read(near_ends[0], space, sizeof space, MOST, &count, &error));
    CHECK(count == 6);
    ropewalk_stream_free(near_ends[0]);
    while (ropewalk_stream_write(far_ends[0], "x", 1, MOST, NULL, NULL) == ROPEWALK_OK)
        ;
    REFUSED(ropewalk_stream_write(far_ends[0], "x", 1, -1, &count, &error), ROPEWALK_PEER, "reads nothing more");
    ropewalk_stream_free(far_ends[0]);

    /* One that is given up says why. */
    OK(ropewalk_stream_reset(near_ends[1], "no such table", &error));
    REFUSED(ropewalk_stream_read(far_ends[1], space, sizeof space, MOST, &count, &error), ROPEWALK_PEER, "no such table");
    OK(ropewalk_stream_reset(far_ends[1], NULL, &error));
    ropewalk_stream_free(near_ends[1]);
    ropewalk_stream_free(far_ends[1]);
}

/* The end that listens opens streams, too: over the connection of one that it has accepted, and the other end accepts them. */
static void opened_by_the_listener(const char *const *peers, const ropewalk_stream_listener *listener)
{
    static const char too_long[1025];
    ropewalk_streams *streams = NULL;
    ropewalk_stream *first = NULL, *opened = NULL, *arrived = NULL;
    OK(ropewalk_streams_connect(peers, 2, token, &streams, &error));
    OK(ropewalk_streams_open(streams, NULL, 0, &first, &error));
    ropewalk_stream *far_end = accepted(listener);
    CHECK(ropewalk_streams_accept(streams, 0, &arrived, NULL) == ROPEWALK_UNDER_WAY);
    CHECK(polled(ropewalk_streams_descriptor(streams), POLLIN, 0) == 0);
    OK(ropewalk_stream_open_beside(far_end, "news", 4, &opened, &error));
    CHECK(polled(ropewalk_streams_descriptor(streams), POLLIN, MOST) == POLLIN);
    OK(ropewalk_streams_accept(streams, MOST, &arrived, &error));
    size_t size = 0;
    CHECK(memcmp(ropewalk_stream_greeting(arrived, &size), "news", 4) == 0 && size == 4);
    waiting(opened, arrived);
    REFUSED(ropewalk_stream_open_beside(far_end, too_long, sizeof too_long, &opened, &error), ROPEWALK_INPUT, "1025 bytes");
    REFUSED(ropewalk_stream_open_beside(NULL, NULL, 0, &opened, &error), ROPEWALK_INPUT, "NULL");
    REFUSED(ropewalk_streams_accept(NULL, 0, &arrived, &error), ROPEWALK_INPUT, "NULL");
    ropewalk_stream_free(opened);
    ropewalk_stream_free(arrived);
    /* A peer that accepts no more resets what is opened. */
    ropewalk_streams_free(streams);
    char space[10];
    OK(ropewalk_stream_open_beside(far_end, NULL, 0, &opened, &error));
    REFUSED(ropewalk_stream_read(opened, space, sizeof space, MOST, NULL, &error), ROPEWALK_PEER, "not accepted here");
    ropewalk_stream_free(opened);
    ropewalk_stream_free(first);
    ropewalk_stream_free(far_end);
}

static void refused(ropewalk_stream *stream)
{
    char space[10];
    REFUSED(ropewalk_stream_read(NULL, space, 1, 0, NULL, &error), ROPEWALK_INPUT, "NULL");
    REFUSED(ropewalk_stream_read(stream, NULL, 1, 0, NULL, &error), ROPEWALK_INPUT, "NULL");
    REFUSED(ropewalk_stream_write(stream, NULL, 1, 0, NULL, &error), ROPEWALK_INPUT, "NULL");
    REFUSED(ropewalk_stream_connect(NULL, 1, token, &stream, &error), ROPEWALK_INPUT, "NULL");
    REFUSED(ropewalk_stream_connect(NULL, 0, token, &stream, &error), ROPEWALK_INPUT, "no address");
    REFUSED(ropewalk_stream_connect(NULL, 0, token, NULL, &error), ROPEWALK_INPUT, "NULL");
    REFUSED(ropewalk_streams_open(NULL, NULL, 0, &stream, &error), ROPEWALK_INPUT, "NULL");
    REFUSED(ropewalk_stream_listener_accept(NULL, 0, &stream, &error), ROPEWALK_INPUT, "NULL");
    const char *outside = "192.0.2.1:7421";
    REFUSED(ropewalk_stream_connect(&outside, 1, NULL, &stream, &error), ROPEWALK_INPUT, "without a token");
    CHECK(ropewalk_streams_descriptor(NULL) == -1);
    CHECK(ropewalk_stream_descriptor(NULL) == -1 && ropewalk_stream_greeting(NULL, NULL) == NULL);
    ropewalk_stream_free(NULL);
    ropewalk_streams_free(NULL);
    ropewalk_stream_listener_free(NULL);
}

int main(int count, char **arguments)
{
    CHECK(count >= 3);
    token = arguments[1];
    const char *ends[2] = {"127.0.0.1:0", "127.0.0.2:0"};
    ropewalk_stream_listener *listener = NULL;
    OK(ropewalk_stream_listener_new(ends, 2, token, &listener, &error));
    char *addresses[2] = {ropewalk_stream_listener_address(listener, 0), ropewalk_stream_listener_address(listener, 1)};
    CHECK(addresses[0] != NULL && addresses[1] != NULL && ropewalk_stream_listener_address(listener, 2) == NULL);
    const char *peers[2] = {addresses[0], addresses[1]};
    ropewalk_stream *near_end = NULL, *far_end = NULL;
    CHECK(ropewalk_stream_listener_accept(listener, 0, &far_end, NULL) == ROPEWALK_UNDER_WAY);
    OK(ropewalk_stream_connect(peers, 2, token, &near_end, &error));
    far_end = accepted(listener);
    unsigned char *bytes = malloc(LONG);
    for (size_t at = 0; at < LONG; ++at)
        bytes[at] = (unsigned char)(at / 11);
    waiting(near_end, far_end);
    echo(near_end, far_end, bytes);
    several(peers, listener, bytes);
    opened_by_the_listener(peers, listener);
    refused(near_end);
    ropewalk_stream_free(near_end);
    ropewalk_stream_free(far_end);
    ropewalk_stream_listener_free(listener);
    ropewalk_string_free(addresses[0]);
    ropewalk_string_free(addresses[1]);
    free(bytes);
    puts("ok");
    return 0;
}
