/* Ropewalk: moves a data set from N hosts to M hosts as one transfer. Written from the library's source; do not edit. */

#ifndef ROPEWALK_H
#define ROPEWALK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 How a call ended; failures are sorted by the party that must act.
 */
typedef enum ropewalk_result {
  /*
   It did what it was asked for; of a transfer: all is delivered.
   */
  ROPEWALK_OK = 0,
  /*
   The transfer has not ended; of message sockets: nothing is there yet.
   */
  ROPEWALK_UNDER_WAY = 1,
  /*
   The peer sends nothing more.
   */
  ROPEWALK_END = 2,
  /*
   The caller: what was asked for is wrong, is refused, or was cancelled.
   */
  ROPEWALK_INPUT = 10,
  /*
   The operator of this host.
   */
  ROPEWALK_HOST = 20,
  /*
   The operator of another host.
   */
  ROPEWALK_PEER = 30,
  /*
   The operator of the network: the same call may succeed later.
   */
  ROPEWALK_NETWORK = 40,
  /*
   The authors of Ropewalk.
   */
  ROPEWALK_BUG = 50,
} ropewalk_result;

/*
 Which nodes a put is sent to.
 */
typedef enum ropewalk_rule {
  /*
   None: puts are refused.
   */
  ROPEWALK_READ_ONLY = 0,
  /*
   All nodes that hold the range.
   */
  ROPEWALK_ALL = 1,
  /*
   The one node that owns it.
   */
  ROPEWALK_OWNER = 2,
} ropewalk_rule;

/*
 Which side a row is on.
 */
typedef enum ropewalk_role {
  /*
   The node has the bytes.
   */
  ROPEWALK_WRITER = 0,
  /*
   The node wants the bytes.
   */
  ROPEWALK_READER = 1,
} ropewalk_role;

/*
 An agent of this process. It serves the memory that it is lent, and nothing else.
 */
typedef struct ropewalk_agent ropewalk_agent;

/*
 A failure.
 */
typedef struct ropewalk_error ropewalk_error;

/*
 Waits for peers on one or more addresses.
 */
typedef struct ropewalk_listener ropewalk_listener;

/*
 A region that is read and written from this process. Any number of threads use one.
 */
typedef struct ropewalk_region ropewalk_region;

/*
 Serves ranges of regions from memory and files of this process.
 */
typedef struct ropewalk_region_server ropewalk_region_server;

/*
 A get or a put under way.
 */
typedef struct ropewalk_request ropewalk_request;

/*
 A connection for messages over one or more interfaces. Any number of threads send with one, one at a time receives.
 */
typedef struct ropewalk_socket ropewalk_socket;

/*
 Bytes in order, both ways, over one or more interfaces; each way ends by itself. Any number of threads use one; bytes of two calls do not mix
 within 256 KiB.
 */
typedef struct ropewalk_stream ropewalk_stream;

/*
 Waits for byte streams on one or more addresses, from any number of peers.
 */
typedef struct ropewalk_stream_listener ropewalk_stream_listener;

/*
 One connection to a listener over one or more interfaces, for any number of byte streams.
 */
typedef struct ropewalk_streams ropewalk_streams;

/*
 A transfer: of rows, or a copy between places. It can be continued.
 */
typedef struct ropewalk_transfer ropewalk_transfer;

/*
 One row: which bytes of the data space a node has, or wants, and where they are on it.
 */
typedef struct ropewalk_row {
  /*
   Side: a value of ropewalk_role.
   */
  int role;
  /*
   Host of the agent.
   */
  const char *host;
  /*
   Port of the agent.
   */
  uint16_t port;
  /*
   file:///path, an absolute path, buffer:NAME of a program, mem:SIZE or null:.
   */
  const char *uri;
  /*
   Position in the object of the first byte.
   */
  uint64_t file_offset;
  /*
   First byte of the data space.
   */
  uint64_t start;
  /*
   The byte behind the last one.
   */
  uint64_t end;
  /*
   Speed of the node, bytes per second; 0 where it is not known.
   */
  uint64_t bytes_per_second;
  /*
   Readers with one name write different ranges of one file that they share; NULL for none.
   */
  const char *destination;
} ropewalk_row;

/*
 A file or folder on a host, or a buffer of a program.
 */
typedef struct ropewalk_place {
  /*
   Host; NULL for this one, where the command ropewalk is started.
   */
  const char *host;
  /*
   Port of the agent there; 0 for ssh, and for this host.
   */
  uint16_t port;
  /*
   Path, or buffer:NAME of a program whose agent is at the port.
   */
  const char *path;
} ropewalk_place;

/*
 Called with the bytes that are safe at the destinations, and with all that are wanted.
 */
typedef void (*ropewalk_progress)(void *user, uint64_t delivered_bytes, uint64_t total_bytes);

/*
 A range of bytes: end is the one behind the last.
 */
typedef struct ropewalk_range {
  /*
   First byte.
   */
  uint64_t start;
  /*
   The byte behind the last one.
   */
  uint64_t end;
} ropewalk_range;

/*
 A range of a region that a node holds, in memory, or in a file where memory is NULL.
 */
typedef struct ropewalk_exposed {
  /*
   First byte in the region, and the byte behind the last.
   */
  struct ropewalk_range range;
  /*
   Its bytes, in memory of the caller.
   */
  void *memory;
  /*
   Else a file that has them.
   */
  const char *file;
  /*
   First of them in the file.
   */
  uint64_t file_offset;
  /*
   Whether this node owns the range.
   */
  bool owned;
} ropewalk_exposed;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 What failed, where, and what to do: a sentence. It lasts as long as the error.

 The caller ensures:
 error is NULL or was returned by a call of this library and is not released.
 */
const char *ropewalk_error_message(const struct ropewalk_error *error);

/*
 Kind of error of a transfer, as in error_kind of --json; empty for other calls.

 The caller ensures:
 As ropewalk_error_message.
 */
const char *ropewalk_error_kind(const struct ropewalk_error *error);

/*
 Releases an error; NULL is permitted.

 The caller ensures:
 As ropewalk_error_message; it is not used afterwards.
 */
void ropewalk_error_free(struct ropewalk_error *error);

/*
 Releases a text that a call returned; NULL is permitted.

 The caller ensures:
 text is NULL or was returned by a call of this library that says so; it is not used afterwards.
 */
void ropewalk_string_free(char *text);

/*
 A transfer without rows and places.
 */
struct ropewalk_transfer *ropewalk_transfer_new(void);

/*
 Releases a transfer; one that runs is cancelled first, and awaited. NULL is permitted. In a child of the process that made it nothing is cancelled.

 The caller ensures:
 transfer is NULL or was returned by ropewalk_transfer_new; it is not used afterwards.
 */
void ropewalk_transfer_free(struct ropewalk_transfer *transfer);

/*
 The file with the secret of the agents, as ropewalk agent --new-token FILE makes it.

 The caller ensures:
 transfer as for ropewalk_transfer_free; file ends with a zero byte; error is NULL or a place for a pointer.
 */
enum ropewalk_result ropewalk_transfer_token_file(struct ropewalk_transfer *transfer,
                                                  const char *file,
                                                  struct ropewalk_error **error);

/*
 A running ropewalk serve --listen at HOST:PORT carries the rows out, from its queue; the transfer follows. It needs the master's token, which
 must be the agents'. The job goes on after ropewalk_transfer_free, and after this program; ropewalk_transfer_cancel ends it.

 The caller ensures:
 As ropewalk_transfer_token_file; at ends with a zero byte.
 */
enum ropewalk_result ropewalk_transfer_master(struct ropewalk_transfer *transfer,
                                              const char *at,
                                              struct ropewalk_error **error);

/*
 Most bytes per second over all readers, or destinations, together; 0 for no limit.

 The caller ensures:
 As ropewalk_transfer_token_file.
 */
enum ropewalk_result ropewalk_transfer_limit(struct ropewalk_transfer *transfer,
                                             uint64_t bytes_per_second,
                                             struct ropewalk_error **error);

/*
 Adds a row; nothing moves before ropewalk_transfer_wait. A row that is added while the transfer runs joins it.

 The caller ensures:
 As ropewalk_transfer_token_file; row is NULL or points to a row whose texts end with a zero byte.
 */
enum ropewalk_result ropewalk_transfer_schedule(struct ropewalk_transfer *transfer,
                                                const struct ropewalk_row *given,
                                                struct ropewalk_error **error);

/*
 Adds a row that is written as in a specification file: writer node1:7420 file:///data/half1 0 0-1023.

 The caller ensures:
 As ropewalk_transfer_token_file; line ends with a zero byte.
 */
enum ropewalk_result ropewalk_transfer_schedule_line(struct ropewalk_transfer *transfer,
                                                     const char *line,
                                                     struct ropewalk_error **error);

/*
 The secret of an agent of this process: for transfers of its buffers, and of agents with the same secret.

 The caller ensures:
 As ropewalk_transfer_token_file; agent is NULL or an agent that is not released.
 */
enum ropewalk_result ropewalk_transfer_token_of(struct ropewalk_transfer *transfer,
                                                const struct ropewalk_agent *agent,
                                                struct ropewalk_error **error);

/*
 Sets an option by the name that the command has for it: of all transfers verify, limit, streams, lane, plain and rails; of copies also
 archive, atomic, delete, delta, destinations, hard-links and sources. Those without a value there are true or false here.

 The caller ensures:
 As ropewalk_transfer_token_file; name and value end with a zero byte.
 */
enum ropewalk_result ropewalk_transfer_option(struct ropewalk_transfer *transfer,
                                              const char *name,
                                              const char *value,
                                              struct ropewalk_error **error);

/*
 One more source of a copy: a replica, or a part. Nothing moves before ropewalk_transfer_wait.

 The caller ensures:
 As ropewalk_transfer_token_file; given is NULL or points to a place whose texts are NULL or end with a zero byte.
 */
enum ropewalk_result ropewalk_transfer_from(struct ropewalk_transfer *transfer,
                                            const struct ropewalk_place *given,
                                            struct ropewalk_error **error);

/*
 One more destination of a copy, the copy's own path. What is there is replaced.

 The caller ensures:
 As ropewalk_transfer_from.
 */
enum ropewalk_result ropewalk_transfer_to(struct ropewalk_transfer *transfer,
                                          const struct ropewalk_place *given,
                                          struct ropewalk_error **error);

/*
 Called by ropewalk_transfer_wait, in its thread, when progress was made; NULL for none.

 The caller ensures:
 As ropewalk_transfer_token_file; progress may be called with user until it is replaced or the transfer is released.
 */
void ropewalk_transfer_on_progress(struct ropewalk_transfer *transfer,
                                   ropewalk_progress progress,
                                   void *user);

/*
 Starts the transfer, or continues it, and waits for its end, at most so many milliseconds: 0 for event loops, a negative number
 for no bound. ROPEWALK_OK: all is delivered. ROPEWALK_UNDER_WAY: it runs; call again. After an error that may pass
 (ROPEWALK_NETWORK, ROPEWALK_PEER) the same call continues with the same rows.

 The caller ensures:
 As ropewalk_transfer_token_file.
 */
enum ropewalk_result ropewalk_transfer_wait(struct ropewalk_transfer *transfer,
                                            int milliseconds,
                                            struct ropewalk_error **error);

/*
 Bytes of the running or last transfer that are in the destinations, checked and on stable storage; all readers together.

 The caller ensures:
 transfer as for ropewalk_transfer_free.
 */
uint64_t ropewalk_transfer_data_sent(const struct ropewalk_transfer *transfer);

/*
 A descriptor for poll while the transfer runs, else -1: readable when ropewalk_transfer_wait has something to do. It belongs to
 the transfer, and is another one after each end.

 The caller ensures:
 As ropewalk_transfer_data_sent.
 */
int ropewalk_transfer_descriptor(const struct ropewalk_transfer *transfer);

/*
 Ends the running transfer within a second; ropewalk_transfer_wait returns its end.

 The caller ensures:
 As ropewalk_transfer_data_sent.
 */
void ropewalk_transfer_cancel(const struct ropewalk_transfer *transfer);

/*
 The report of the last transfer that has ended, as JSON (docs/json.md); NULL before. To be released with
 ropewalk_string_free.

 The caller ensures:
 As ropewalk_transfer_data_sent.
 */
char *ropewalk_transfer_report(const struct ropewalk_transfer *transfer);

/*
 Starts an agent in this process, on threads of its own.

 * address: where it listens, as 192.168.1.5:0 or [::]:7420; port 0 lets the system choose. NULL for all addresses of this host.
 * token_file: the file with its secret; NULL for a fresh one, which transfers get by
   ropewalk_transfer_token_of.
 * agent: where the agent is put.

 The caller ensures:
 Texts are NULL or end with a zero byte; agent is NULL or a place for a pointer; error is NULL or a place for a pointer.
 */
enum ropewalk_result ropewalk_agent_new(const char *address,
                                        const char *token_file,
                                        struct ropewalk_agent **agent,
                                        struct ropewalk_error **error);

/*
 Stops an agent and its part of transfers, and releases it. Memory that it was lent is the caller's again. NULL is permitted. In a child of the process
 that made it nothing is stopped.

 The caller ensures:
 agent is NULL or was returned by ropewalk_agent_new; it is not used afterwards.
 */
void ropewalk_agent_free(struct ropewalk_agent *agent);

/*
 The port that it listens on.

 The caller ensures:
 agent is NULL or was returned by ropewalk_agent_new and is not released.
 */
uint16_t ropewalk_agent_port(const struct ropewalk_agent *agent);

/*
 Serves memory that transfers read, as buffer:NAME of this agent. Nothing is copied before a transfer needs it.

 The caller ensures:
 agent as for ropewalk_agent_port; name ends with a zero byte; error is NULL or a place for a pointer. size bytes from start on can be
 read, and do not change, until ropewalk_agent_take_back or ropewalk_agent_free has returned.
 */
enum ropewalk_result ropewalk_agent_lend(struct ropewalk_agent *agent,
                                         const char *name,
                                         const void *start,
                                         size_t size,
                                         struct ropewalk_error **error);

/*
 Serves memory that transfers write, and read, as buffer:NAME of this agent.

 The caller ensures:
 As ropewalk_agent_lend; the bytes can be written, too, and nothing else reads or writes them while a transfer does.
 */
enum ropewalk_result ropewalk_agent_lend_writable(struct ropewalk_agent *agent,
                                                  const char *name,
                                                  void *start,
                                                  size_t size,
                                                  struct ropewalk_error **error);

/*
 Ends the use of a buffer: when it returns, the memory is the caller's again. A transfer that needs it fails. Waits for no network.

 The caller ensures:
 agent as for ropewalk_agent_port; name ends with a zero byte; error is NULL or a place for a pointer.
 */
enum ropewalk_result ropewalk_agent_take_back(struct ropewalk_agent *agent,
                                              const char *name,
                                              struct ropewalk_error **error);

/*
 Whether a transfer writes the buffer now: 1 or 0; -1 where there is none of this name. Its bytes are not to be read then.

 The caller ensures:
 As ropewalk_agent_take_back.
 */
int ropewalk_agent_is_busy(struct ropewalk_agent *agent,
                           const char *name);

/*
 The ranges of a buffer that transfers have delivered, also ones that failed, in order: at most most of them.

 * count: where it is put how many there are, which may be more.

 The caller ensures:
 As ropewalk_agent_take_back; ranges is NULL or has space for most ranges; count is NULL or a place for a number.
 */
enum ropewalk_result ropewalk_agent_written(struct ropewalk_agent *agent,
                                            const char *name,
                                            struct ropewalk_range *ranges,
                                            size_t most,
                                            size_t *count,
                                            struct ropewalk_error **error);

/*
 Listens on every address; port 0 lets the system choose one.

 * token_file: the file with the secret of both ends, with which messages are sealed; NULL only between addresses of this host.
 * listener: where the listener is put.

 The caller ensures:
 addresses has count texts that end with a zero byte, and token_file is NULL or ends with one; listener is NULL or a place for a pointer;
 error is NULL or a place for a pointer.
 */
enum ropewalk_result ropewalk_listener_new(const char *const *addresses,
                                           size_t count,
                                           const char *token_file,
                                           struct ropewalk_listener **listener,
                                           struct ropewalk_error **error);

/*
 Releases a listener; sockets that it has accepted stay. NULL is permitted.

 The caller ensures:
 listener is NULL or was returned by ropewalk_listener_new; it is not used afterwards.
 */
void ropewalk_listener_free(struct ropewalk_listener *listener);

/*
 The address of this number that is listened on, with its port; NULL where there are fewer. To be released with
 ropewalk_string_free.

 The caller ensures:
 listener is NULL or was returned by ropewalk_listener_new and is not released.
 */
char *ropewalk_listener_address(const struct ropewalk_listener *listener, size_t number);

/*
 A descriptor for poll: readable when a peer can be accepted. It belongs to the listener; -1 for NULL.

 The caller ensures:
 As ropewalk_listener_address.
 */
int ropewalk_listener_descriptor(const struct ropewalk_listener *listener);

/*
 Waits for a peer, at most so many milliseconds; a negative number for no bound. ROPEWALK_UNDER_WAY: none was there.

 The caller ensures:
 As ropewalk_listener_address; socket is NULL or a place for a pointer; error is NULL or a place for a pointer.
 */
enum ropewalk_result ropewalk_listener_accept(const struct ropewalk_listener *listener,
                                              int milliseconds,
                                              struct ropewalk_socket **socket,
                                              struct ropewalk_error **error);

/*
 Connects to a listener, over one interface for each of its addresses. Waits until a connection works.

 The caller ensures:
 As ropewalk_listener_new; socket is NULL or a place for a pointer.
 */
enum ropewalk_result ropewalk_socket_connect(const char *const *addresses,
                                             size_t count,
                                             const char *token_file,
                                             struct ropewalk_socket **socket,
                                             struct ropewalk_error **error);

/*
 Closes a socket and releases it: what the peer does not have is given up. NULL is permitted.

 The caller ensures:
 socket is NULL or was returned by a call of this library; it is not used afterwards.
 */
void ropewalk_socket_free(struct ropewalk_socket *socket);

/*
 A descriptor for poll: readable when ropewalk_socket_receive with 0 milliseconds has something to do, and until it has returned
 ROPEWALK_UNDER_WAY. It belongs to the socket; -1 for NULL.

 The caller ensures:
 socket is NULL or was returned by a call of this library and is not released.
 */
int ropewalk_socket_descriptor(const struct ropewalk_socket *socket);

/*
 Sends a message from where it lies, and waits until the peer's socket has all of it.

 The caller ensures:
 As ropewalk_socket_descriptor; message points to size bytes; error is NULL or a place for a pointer.
 */
enum ropewalk_result ropewalk_socket_send(const struct ropewalk_socket *socket,
                                          const void *message,
                                          size_t size,
                                          struct ropewalk_error **error);

/*
 Copies a message and begins to send it; waits only while 1024 are on their way. Messages arrive in the order in which they were begun.

 * number: where its number is put, for ropewalk_socket_is_sent.

 The caller ensures:
 As ropewalk_socket_send; number is NULL or a place for a number.
 */
enum ropewalk_result ropewalk_socket_send_start(const struct ropewalk_socket *socket,
                                                const void *message,
                                                size_t size,
                                                uint64_t *number,
                                                struct ropewalk_error **error);

/*
 Whether the peer's socket has the whole message of this number. Does not wait.

 The caller ensures:
 As ropewalk_socket_descriptor.
 */
bool ropewalk_socket_is_sent(const struct ropewalk_socket *socket, uint64_t number);

/*
 Receives the next message into memory of the caller, and waits for it at most so many milliseconds: 0 for event loops, a negative number for no
 bound. ROPEWALK_UNDER_WAY: none is there. ROPEWALK_END: the peer sends nothing more. One that is longer than size is an error, and stays.

 * length: where the length of the message is put.

 The caller ensures:
 As ropewalk_socket_descriptor; space points to size bytes, which may all be overwritten; length is NULL or a place for a number; error is
 NULL or a place for a pointer.
 */
enum ropewalk_result ropewalk_socket_receive(const struct ropewalk_socket *socket,
                                             void *space,
                                             size_t size,
                                             int milliseconds,
                                             size_t *length,
                                             struct ropewalk_error **error);

/*
 Announces that nothing more is sent, and waits until the peer has all. Receiving goes on.

 The caller ensures:
 As ropewalk_socket_descriptor; error is NULL or a place for a pointer.
 */
enum ropewalk_result ropewalk_socket_finish(const struct ropewalk_socket *socket, struct ropewalk_error **error);

/*
 Listens on every address; port 0 lets the system choose one.

 * token_file: the file with the secret of both ends, with which bytes are sealed; NULL only between addresses of this host.
 * listener: where the listener is put.

 The caller ensures:
 As ropewalk_listener_new.
 */
enum ropewalk_result ropewalk_stream_listener_new(const char *const *addresses,
                                                  size_t count,
                                                  const char *token_file,
                                                  struct ropewalk_stream_listener **listener,
                                                  struct ropewalk_error **error);

/*
 Releases a listener; streams that it has accepted stay. NULL is permitted.

 The caller ensures:
 listener is NULL or was returned by ropewalk_stream_listener_new; it is not used afterwards.
 */
void ropewalk_stream_listener_free(struct ropewalk_stream_listener *listener);

/*
 The address of this number that is listened on, with its port; NULL where there are fewer. To be released with
 ropewalk_string_free.

 The caller ensures:
 listener is NULL or was returned by ropewalk_stream_listener_new and is not released.
 */
char *ropewalk_stream_listener_address(const struct ropewalk_stream_listener *listener, size_t number);

/*
 A descriptor for poll: readable when a stream can be accepted, and until accepting has returned ROPEWALK_UNDER_WAY. It belongs to the listener;
 -1 for NULL.

 The caller ensures:
 As ropewalk_stream_listener_address.
 */
int ropewalk_stream_listener_descriptor(const struct ropewalk_stream_listener *listener);

/*
 Waits for a stream, at most so many milliseconds; a negative number for no bound. ROPEWALK_UNDER_WAY: none was there.

 The caller ensures:
 As ropewalk_stream_listener_address; stream is NULL or a place for a pointer; error is NULL or a place for a pointer.
 */
enum ropewalk_result ropewalk_stream_listener_accept(const struct ropewalk_stream_listener *listener,
                                                     int milliseconds,
                                                     struct ropewalk_stream **stream,
                                                     struct ropewalk_error **error);

/*
 Connects to a listener with one stream, over one interface for each of its addresses. Waits until a connection works.

 The caller ensures:
 As ropewalk_stream_listener_new; stream is NULL or a place for a pointer.
 */
enum ropewalk_result ropewalk_stream_connect(const char *const *addresses,
                                             size_t count,
                                             const char *token_file,
                                             struct ropewalk_stream **stream,
                                             struct ropewalk_error **error);

/*
 Connects to a listener for any number of streams, which share the connection. Waits until one works.

 The caller ensures:
 As ropewalk_stream_listener_new; streams is NULL or a place for a pointer.
 */
enum ropewalk_result ropewalk_streams_connect(const char *const *addresses,
                                              size_t count,
                                              const char *token_file,
                                              struct ropewalk_streams **streams,
                                              struct ropewalk_error **error);

/*
 Opens a stream, one of at most 1024. Does not wait for the acceptor, which has the greeting before anything else.

 * greeting: what the stream is for, size bytes, at most 1024.

 The caller ensures:
 streams is NULL or was returned by ropewalk_streams_connect and is not released; greeting points to size bytes; stream is NULL or a place
 for a pointer; error is NULL or a place for a pointer.
 */
enum ropewalk_result ropewalk_streams_open(const struct ropewalk_streams *streams,
                                           const void *greeting,
                                           size_t size,
                                           struct ropewalk_stream **stream,
                                           struct ropewalk_error **error);

/*
 Opens another stream over the connection of this one, to the same peer: the way in which the end that listens opens streams. The peer has it from
 ropewalk_streams_accept, or from its listener; a peer that accepts none resets it. Does not wait.

 * greeting: as of ropewalk_streams_open.
 * opened: where the new stream is put.

 The caller ensures:
 As ropewalk_stream_descriptor; greeting points to size bytes; opened is NULL or a place for a pointer; error is NULL or a place for
 a pointer.
 */
enum ropewalk_result ropewalk_stream_open_beside(const struct ropewalk_stream *stream,
                                                 const void *greeting,
                                                 size_t size,
                                                 struct ropewalk_stream **opened,
                                                 struct ropewalk_error **error);

/*
 Waits for a stream that the listening end opens, at most so many milliseconds; a negative number for no bound. ROPEWALK_UNDER_WAY: none was there.

 The caller ensures:
 streams is NULL or was returned by ropewalk_streams_connect and is not released; stream is NULL or a place for a pointer; error is NULL or
 a place for a pointer.
 */
enum ropewalk_result ropewalk_streams_accept(const struct ropewalk_streams *streams,
                                             int milliseconds,
                                             struct ropewalk_stream **stream,
                                             struct ropewalk_error **error);

/*
 A descriptor for poll: readable when a stream of the listening end can be accepted, and until accepting has returned ROPEWALK_UNDER_WAY. It belongs
 to the connection; -1 for NULL.

 The caller ensures:
 streams is NULL or was returned by ropewalk_streams_connect and is not released.
 */
int ropewalk_streams_descriptor(const struct ropewalk_streams *streams);

/*
 Releases a connection: no more streams are opened, those that are open stay. NULL is permitted.

 The caller ensures:
 streams is NULL or was returned by ropewalk_streams_connect; it is not used afterwards.
 */
void ropewalk_streams_free(struct ropewalk_streams *streams);

/*
 Closes a stream and releases it, as close does: what was written is still delivered while the process lives
 (else ropewalk_stream_finish first), and the peer reads to the end; what it writes fails. NULL is permitted.

 The caller ensures:
 stream is NULL or was returned by a call of this library; it is not used afterwards.
 */
void ropewalk_stream_free(struct ropewalk_stream *stream);

/*
 A descriptor for poll, readable and writable as that of a socket. Calls with 0 milliseconds that return ROPEWALK_UNDER_WAY make it quiet until there
 is news. Nothing can be read from it or written to it. It belongs to the stream; -1 for NULL.

 The caller ensures:
 stream is NULL or was returned by a call of this library and is not released.
 */
int ropewalk_stream_descriptor(const struct ropewalk_stream *stream);

/*
 What the end that opened the stream says it is for. It lasts as long as the stream; NULL for NULL.

 * size: where the number of its bytes is put.

 The caller ensures:
 As ropewalk_stream_descriptor; size is NULL or a place for a number.
 */
const void *ropewalk_stream_greeting(const struct ropewalk_stream *stream, size_t *size);

/*
 Reads what is there, at least one byte, and waits for it at most so many milliseconds: 0 for event loops, a negative number for no bound.
 ROPEWALK_UNDER_WAY: nothing is there. ROPEWALK_END: the peer has ended its way, and all of it was read.

 * count: where the number of bytes is put that were read; 0 unless the result is ROPEWALK_OK.

 The caller ensures:
 As ropewalk_stream_descriptor; space points to size bytes; count is NULL or a place for a number; error is NULL or a place for a pointer.
 */
enum ropewalk_result ropewalk_stream_read(const struct ropewalk_stream *stream,
                                          void *space,
                                          size_t size,
                                          int milliseconds,
                                          size_t *count,
                                          struct ropewalk_error **error);

/*
 Writes all bytes, and waits at most so many milliseconds while the peer has too much to read: 0 for event loops, a negative number for no bound.
 ROPEWALK_OK: all are on their way. ROPEWALK_UNDER_WAY: only the first count are. The memory is the caller's again.

 * count: where the number of bytes is put that were written, also when the call failed.

 The caller ensures:
 As ropewalk_stream_descriptor; bytes points to size bytes; count is NULL or a place for a number; error is NULL or a place for a pointer.
 */
enum ropewalk_result ropewalk_stream_write(const struct ropewalk_stream *stream,
                                           const void *bytes,
                                           size_t size,
                                           int milliseconds,
                                           size_t *count,
                                           struct ropewalk_error **error);

/*
 Ends writing, as shutdown with SHUT_WR does: the peer reads to the end. Reading goes on. Further calls do nothing.

 The caller ensures:
 As ropewalk_stream_descriptor; error is NULL or a place for a pointer.
 */
enum ropewalk_result ropewalk_stream_shutdown(const struct ropewalk_stream *stream, struct ropewalk_error **error);

/*
 Ends writing, and waits at most so many milliseconds until the peer's host has all that was written; a negative number for no bound.
 ROPEWALK_UNDER_WAY: it does not have it yet. Reading goes on. For programs that are about to exit: what is on its way is lost with them.

 The caller ensures:
 As ropewalk_stream_descriptor; error is NULL or a place for a pointer.
 */
enum ropewalk_result ropewalk_stream_finish(const struct ropewalk_stream *stream,
                                            int milliseconds,
                                            struct ropewalk_error **error);

/*
 Gives a stream up, both ways: what is on its way is thrown away, and the peer's calls fail with this text. The stream is still to be released.

 * text: why, in UTF-8, cut after 512 bytes; NULL for none.

 The caller ensures:
 As ropewalk_stream_descriptor; text is NULL or ends with a zero byte; error is NULL or a place for a pointer.
 */
enum ropewalk_result ropewalk_stream_reset(const struct ropewalk_stream *stream,
                                           const char *text,
                                           struct ropewalk_error **error);

/*
 Listens for origins on every address, which are the interfaces of each connection; port 0 lets the system choose one. At most 256 regions are connected to a
 server at once.

 * token_file: the file with the secret of all ends, with which data is sealed; NULL only between addresses of this host.
 * server: where the server is put.

 The caller ensures:
 As ropewalk_listener_new.
 */
enum ropewalk_result ropewalk_region_server_new(const char *const *addresses,
                                                size_t count,
                                                const char *token_file,
                                                struct ropewalk_region_server **server,
                                                struct ropewalk_error **error);

/*
 Ends a server and releases it: memory that it was lent is the caller's again. NULL is permitted. In a child of the process that made it nothing is ended.

 The caller ensures:
 server is NULL or was returned by ropewalk_region_server_new; it is not used afterwards.
 */
void ropewalk_region_server_free(struct ropewalk_region_server *server);

/*
 The address of this number that is listened on, with its port; NULL where there are fewer. To be released with
 ropewalk_string_free.

 The caller ensures:
 server is NULL or was returned by ropewalk_region_server_new and is not released.
 */
char *ropewalk_region_server_address(const struct ropewalk_region_server *server, size_t number);

/*
 Serves ranges of a region. All its nodes state the same size and rule. Memory is lent until ropewalk_region_server_withdraw has returned, or the server
 is released: the caller may read and write it meanwhile where no origin does.

 * rule: a value of ropewalk_rule.

 The caller ensures:
 As ropewalk_region_server_address; name ends with a zero byte; exposed has count entries, whose memory is there, and whose files are NULL or end with a zero
 byte; error is NULL or a place for a pointer.
 */
enum ropewalk_result ropewalk_region_server_serve(struct ropewalk_region_server *server,
                                                  const char *name,
                                                  uint64_t size,
                                                  int rule,
                                                  const struct ropewalk_exposed *exposed,
                                                  size_t count,
                                                  struct ropewalk_error **error);

/*
 Serves a region no longer, and syncs its files; its memory is the caller's again.

 The caller ensures:
 As ropewalk_region_server_serve.
 */
enum ropewalk_result ropewalk_region_server_withdraw(struct ropewalk_region_server *server,
                                                     const char *name,
                                                     struct ropewalk_error **error);

/*
 Connects to the nodes of a region.

 * nodes: one text for each node: its address and port, or those of several interfaces with commas between.
 * token_file: as for ropewalk_region_server_new.

 The caller ensures:
 nodes has count texts that end with a zero byte, as name does; token_file is NULL or ends with one; region is NULL or a place for a pointer;
 error is NULL or a place for a pointer.
 */
enum ropewalk_result ropewalk_region_connect(const char *name,
                                             const char *const *nodes,
                                             size_t count,
                                             const char *token_file,
                                             struct ropewalk_region **region,
                                             struct ropewalk_error **error);

/*
 Releases a region. Requests under way are released before. NULL is permitted.

 The caller ensures:
 region is NULL or was returned by ropewalk_region_connect; it is not used afterwards.
 */
void ropewalk_region_free(struct ropewalk_region *region);

/*
 Bytes of a region; 0 for NULL.

 The caller ensures:
 region is NULL or was returned by ropewalk_region_connect and is not released.
 */
uint64_t ropewalk_region_size(const struct ropewalk_region *region);

/*
 Reads len bytes from an offset on, from any node that holds them.

 The caller ensures:
 As ropewalk_region_size; into has len bytes; error is NULL or a place for a pointer.
 */
enum ropewalk_result ropewalk_region_get(const struct ropewalk_region *region,
                                         uint64_t offset,
                                         void *into,
                                         size_t len,
                                         struct ropewalk_error **error);

/*
 Begins to read ranges, whose bytes are one after the other in into when ropewalk_request_wait has returned. Until then the memory is not touched.

 The caller ensures:
 As ropewalk_region_size; ranges has count entries; into has as many bytes as they have together, until the request is released; request is NULL or a place for a
 pointer; error is NULL or a place for a pointer.
 */
enum ropewalk_result ropewalk_region_get_start(const struct ropewalk_region *region,
                                               const struct ropewalk_range *ranges,
                                               size_t count,
                                               void *into,
                                               struct ropewalk_request **request,
                                               struct ropewalk_error **error);

/*
 Writes len bytes from an offset on, and returns when the nodes that the region's rule names have them.

 The caller ensures:
 As ropewalk_region_size; from has len bytes; error is NULL or a place for a pointer.
 */
enum ropewalk_result ropewalk_region_put(const struct ropewalk_region *region,
                                         uint64_t offset,
                                         const void *from,
                                         size_t len,
                                         struct ropewalk_error **error);

/*
 Begins to write bytes, which are copied: the memory may be used again at once.

 * request: NULL where ropewalk_region_flush is to wait for it, and to have its error.

 The caller ensures:
 As ropewalk_region_put; request is NULL or a place for a pointer.
 */
enum ropewalk_result ropewalk_region_put_start(const struct ropewalk_region *region,
                                               uint64_t offset,
                                               const void *from,
                                               size_t len,
                                               struct ropewalk_request **request,
                                               struct ropewalk_error **error);

/*
 Waits until a request is complete, at most so many milliseconds; a negative number for no bound but the region's. ROPEWALK_UNDER_WAY: it goes on.

 The caller ensures:
 request is NULL or was returned by ropewalk_region_get_start or ropewalk_region_put_start and is not released; error is NULL or a place for
 a pointer.
 */
enum ropewalk_result ropewalk_request_wait(struct ropewalk_request *request,
                                           int milliseconds,
                                           struct ropewalk_error **error);

/*
 Releases a request: a get is given up, a put goes on. NULL is permitted. In a child of the process that made it a get goes on, too.

 The caller ensures:
 As ropewalk_request_wait; it is not used afterwards.
 */
void ropewalk_request_free(struct ropewalk_request *request);

/*
 What is begun after it leaves when all puts and notifications begun before are complete. Does not wait. NULL is permitted.

 The caller ensures:
 As ropewalk_region_size.
 */
void ropewalk_region_fence(const struct ropewalk_region *region);

/*
 Waits until all puts and notifications that were begun are complete.

 The caller ensures:
 As ropewalk_region_size; error is NULL or a place for a pointer.
 */
enum ropewalk_result ropewalk_region_flush(const struct ropewalk_region *region, struct ropewalk_error **error);

/*
 Gives each byte of a range a value, unless it has a greater one, after all puts that were begun before.

 The caller ensures:
 As ropewalk_region_flush.
 */
enum ropewalk_result ropewalk_region_notify(const struct ropewalk_region *region,
                                            struct ropewalk_range range,
                                            uint64_t value,
                                            struct ropewalk_error **error);

/*
 Waits until some byte of a range has at least this value, at most so many milliseconds; a negative number for no bound. ROPEWALK_UNDER_WAY: none has.

 * value: where the value that was found is put; may be NULL.

 The caller ensures:
 As ropewalk_region_flush; value is NULL or a place for a number.
 */
enum ropewalk_result ropewalk_region_wait(const struct ropewalk_region *region,
                                          struct ropewalk_range range,
                                          uint64_t at_least,
                                          int milliseconds,
                                          uint64_t *value,
                                          struct ropewalk_error **error);

/*
 The file with the secret of the agents. Whether it can be used; else cep_error says why not.

 The caller ensures:
 file ends with a zero byte.
 */
bool cep_token_file(const char *file);

/*
 A running ropewalk serve --listen at HOST:PORT carries the transfer out, with the token of cep_token_file. Whether that is an address; else
 cep_error says why not.

 The caller ensures:
 at ends with a zero byte.
 */
bool cep_master(const char *at);

/*
 Schedules one part of the transfer; what is wrong with it the next cep_transfer says.

 The caller ensures:
 row is NULL or points to a row whose texts end with a zero byte.
 */
void cep_schedule(const struct ropewalk_row *given);

/*
 Starts the transfer, or continues it. Whether all is delivered. Without cep_event_driven it waits for the end, else it returns at once.
 After false cep_error has the reason, or nothing while the transfer runs; the next call tries again. The other calls may be made by
 other threads while it waits.
 */
bool cep_transfer(void);

/*
 Bytes that are in the destinations, checked and on stable storage.
 */
uint64_t cep_data_sent(void);

/*
 Whether cep_transfer returns at once, for programs with an event loop.
 */
void cep_event_driven(bool is_event_driven);

/*
 A descriptor for poll while the transfer runs, else -1: readable when cep_transfer has something to do.
 */
int cep_descriptor(void);

/*
 Ends the running transfer within a second.
 */
void cep_cancel(void);

/*
 Why the last call failed; NULL where it did not. It lasts until the next call.
 */
const char *cep_error(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* ROPEWALK_H */
