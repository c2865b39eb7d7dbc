/* The calls of the composite endpoint protocol (CEP), Table 1, as the paper prints them: one transfer of this process.
 *
 *   dbsInfo row = {.role = ROPEWALK_WRITER, .host = "node1", .port = 55553, .uri = "file:///data/half1", .end = 1024};
 *   schedule(&row);                          one row of Figure 2: the range is [start, end)
 *   while (!transfer() && cep_error() == NULL)
 *       ;
 *   printf("%llu bytes\n", data_sent());
 *
 * transfer() waits for the end, or returns at once after cep_event_driven(true); cep_descriptor() is then what poll() waits for.
 */
#ifndef CEP_H
#define CEP_H

#include "ropewalk.h"

/* One row of Figure 2, in its columns. */
typedef ropewalk_row dbsInfo;

/* Schedules one part of the transfer. What is wrong with it the next transfer() says. */
static inline void schedule(dbsInfo *dbs)
{
    cep_schedule(dbs);
}

/* Starts the transfer, or continues it. Whether all is delivered; else cep_error() says why not, or NULL while it runs. */
static inline bool transfer(void)
{
    return cep_transfer();
}

/* Bytes that are in the destinations, checked and on stable storage. */
static inline unsigned long long data_sent(void)
{
    return cep_data_sent();
}

#endif
