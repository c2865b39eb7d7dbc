/* A child that fork has made releases its copies of handles, and those of its parent go on. Arguments: token file, folder, ports of two agents. */
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

int main(int count, char **arguments)
{
    CHECK(count >= 5);
    char from[1000], to[1000];
    snprintf(from, sizeof from, "%s/from", arguments[2]);
    snprintf(to, sizeof to, "%s/to", arguments[2]);

    ropewalk_agent *agent = NULL;
    unsigned char lent[100] = "lent", memory[100] = "region";
    OK(ropewalk_agent_new("127.0.0.1:0", arguments[1], &agent, &error));
    OK(ropewalk_agent_lend_writable(agent, "lent", lent, sizeof lent, &error));

    const char *any[1] = {"127.0.0.1:0"};
    ropewalk_region_server *server = NULL;
    ropewalk_region *region = NULL;
    ropewalk_exposed all = {.range = {0, sizeof memory}, .memory = memory};
    OK(ropewalk_region_server_new(any, 1, arguments[1], &server, &error));
    OK(ropewalk_region_server_serve(server, "table", sizeof memory, ROPEWALK_ALL, &all, 1, &error));
    char *address = ropewalk_region_server_address(server, 0);
    const char *nodes[1] = {address};
    OK(ropewalk_region_connect("table", nodes, 1, arguments[1], &region, &error));
    unsigned char into[100];
    ropewalk_request *get = NULL, *put = NULL;
    ropewalk_range range = {0, 6};
    OK(ropewalk_region_get_start(region, &range, 1, into, &get, &error));
    OK(ropewalk_region_put_start(region, 50, "put", 3, &put, &error));

    ropewalk_transfer *transfer = ropewalk_transfer_new();
    ropewalk_place source = {.host = "127.0.0.1", .port = (uint16_t)atoi(arguments[3]), .path = from};
    ropewalk_place sink = {.host = "127.0.0.1", .port = (uint16_t)atoi(arguments[4]), .path = to};
    OK(ropewalk_transfer_token_file(transfer, arguments[1], &error));
    OK(ropewalk_transfer_option(transfer, "limit", "20Mbit", &error));
    OK(ropewalk_transfer_from(transfer, &source, &error));
    OK(ropewalk_transfer_to(transfer, &sink, &error));
    CHECK(ropewalk_transfer_wait(transfer, 0, NULL) == ROPEWALK_UNDER_WAY);

    ropewalk_listener *listener = NULL;
    ropewalk_socket *own = NULL, *other = NULL;
    OK(ropewalk_listener_new(any, 1, arguments[1], &listener, &error));
    char *listening = ropewalk_listener_address(listener, 0);
    OK(ropewalk_socket_connect((const char *const *)&listening, 1, arguments[1], &own, &error));
    OK(ropewalk_listener_accept(listener, 60000, &other, &error));

    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        /* One that hangs ends, too. */
        alarm(60);
        REFUSED(ropewalk_region_get(region, 0, into, 6, &error), ROPEWALK_INPUT, "before a fork");
        REFUSED(ropewalk_region_put(region, 0, "child", 5, &error), ROPEWALK_INPUT, "before a fork");
        REFUSED(ropewalk_region_flush(region, &error), ROPEWALK_INPUT, "before a fork");
        REFUSED(ropewalk_region_notify(region, range, 5, &error), ROPEWALK_INPUT, "before a fork");
        REFUSED(ropewalk_region_wait(region, range, 1, 1000, NULL, &error), ROPEWALK_INPUT, "before a fork");
        REFUSED(ropewalk_request_wait(get, 1000, &error), ROPEWALK_INPUT, "before a fork");
        REFUSED(ropewalk_region_server_withdraw(server, "table", &error), ROPEWALK_INPUT, "before a fork");
        ropewalk_region_fence(region);
        REFUSED(ropewalk_socket_send(own, "child", 5, &error), ROPEWALK_INPUT, "before a fork");
        REFUSED(ropewalk_socket_send_start(own, "child", 5, NULL, &error), ROPEWALK_INPUT, "before a fork");
        REFUSED(ropewalk_socket_receive(other, into, 6, 0, NULL, &error), ROPEWALK_INPUT, "before a fork");
        REFUSED(ropewalk_socket_receive(other, into, 6, 1000, NULL, &error), ROPEWALK_INPUT, "before a fork");
        REFUSED(ropewalk_socket_finish(own, &error), ROPEWALK_INPUT, "before a fork");
        REFUSED(ropewalk_listener_accept(listener, 1000, &other, &error), ROPEWALK_INPUT, "before a fork");
        REFUSED(ropewalk_transfer_wait(transfer, 1000, &error), ROPEWALK_INPUT, "before a fork");
        REFUSED(ropewalk_agent_take_back(agent, "lent", &error), ROPEWALK_INPUT, "before a fork");
        /* New ones would need what only the parent has. */
        ropewalk_socket *made = NULL;
        ropewalk_agent *another = NULL;
        REFUSED(ropewalk_socket_connect((const char *const *)&listening, 1, arguments[1], &made, &error), ROPEWALK_INPUT, "forked");
        REFUSED(ropewalk_agent_new("127.0.0.1:0", arguments[1], &another, &error), ROPEWALK_INPUT, "forked");
        ropewalk_transfer *fresh = ropewalk_transfer_new();
        OK(ropewalk_transfer_token_file(fresh, arguments[1], &error));
        OK(ropewalk_transfer_from(fresh, &source, &error));
        OK(ropewalk_transfer_to(fresh, &sink, &error));
        REFUSED(ropewalk_transfer_wait(fresh, 0, &error), ROPEWALK_INPUT, "forked");
        ropewalk_transfer_free(fresh);
        ropewalk_socket_free(own);
        ropewalk_socket_free(other);
        ropewalk_listener_free(listener);
        ropewalk_transfer_free(transfer);
        ropewalk_request_free(get);
        ropewalk_request_free(put);
        ropewalk_region_free(region);
        ropewalk_region_server_free(server);
        ropewalk_agent_free(agent);
        _exit(7);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);

    size_t length = 0;
    OK(ropewalk_socket_send_start(own, "parent", 6, NULL, &error));
    OK(ropewalk_socket_receive(other, into, sizeof into, 60000, &length, &error));
    CHECK(length == 6 && memcmp(into, "parent", 6) == 0);
    OK(ropewalk_request_wait(get, 60000, &error));
    CHECK(memcmp(into, "region", 6) == 0);
    OK(ropewalk_request_wait(put, 60000, &error));
    OK(ropewalk_region_get(region, 50, into, 3, &error));
    CHECK(memcmp(into, "put", 3) == 0);
    OK(ropewalk_transfer_wait(transfer, 60000, &error));
    ropewalk_transfer_free(transfer);
    /* The agent still has what it was lent. */
    transfer = ropewalk_transfer_new();
    ropewalk_place here = {.host = "127.0.0.1", .port = ropewalk_agent_port(agent), .path = "buffer:lent"};
    snprintf(to, sizeof to, "%s/lent", arguments[2]);
    OK(ropewalk_transfer_token_of(transfer, agent, &error));
    OK(ropewalk_transfer_from(transfer, &here, &error));
    OK(ropewalk_transfer_to(transfer, &sink, &error));
    OK(ropewalk_transfer_wait(transfer, 60000, &error));
    ropewalk_transfer_free(transfer);
    ropewalk_request_free(get);
    ropewalk_request_free(put);
    ropewalk_region_free(region);
    ropewalk_region_server_free(server);
    ropewalk_string_free(address);
    ropewalk_socket_free(own);
    ropewalk_socket_free(other);
    ropewalk_listener_free(listener);
    ropewalk_string_free(listening);
    ropewalk_agent_free(agent);
    puts("ok");
    return 0;
}
