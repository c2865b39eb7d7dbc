/* Ropewalk: moves a data set from N hosts to M hosts as one transfer. Written from the library's source; do not edit. */

#ifndef ROPEWALK_H
#define ROPEWALK_H

#include <stdbool.h>
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
   The transfer has not ended.
   */
  ROPEWALK_UNDER_WAY = 1,
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
 A failure.
 */
typedef struct ropewalk_error ropewalk_error;

/*
 A transfer that is described row by row and can be continued.
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
   file:///path, an absolute path, mem:SIZE or null:.
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
 Called with the bytes that are safe at the destinations, and with all that are wanted.
 */
typedef void (*ropewalk_progress)(void *user, uint64_t delivered_bytes, uint64_t total_bytes);

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
 A transfer without rows.
 */
struct ropewalk_transfer *ropewalk_transfer_new(void);

/*
 Releases a transfer; one that runs is cancelled first, and awaited. NULL is permitted.

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
 Most bytes per second over all readers together; 0 for no limit.

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
 The file with the secret of the agents. Whether it can be used; else cep_error says why not.

 The caller ensures:
 file ends with a zero byte.
 */
bool cep_token_file(const char *file);

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
