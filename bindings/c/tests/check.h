/* What the test programs have in common. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ropewalk.h"

#define CHECK(condition)                                                                                              \
    do {                                                                                                              \
        if (!(condition)) {                                                                                           \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                           \
            exit(1);                                                                                                  \
        }                                                                                                             \
    } while (0)

/* The call did what it was to do; else the error's text is printed. */
#define OK(call)                                                                                                      \
    do {                                                                                                              \
        ropewalk_error *error = NULL;                                                                                 \
        ropewalk_result result = call;                                                                                \
        if (result != ROPEWALK_OK) {                                                                                  \
            fprintf(stderr, "%s:%d: %d %s\n", __FILE__, __LINE__, (int)result,                                        \
                    error == NULL ? "" : ropewalk_error_message(error));                                              \
            exit(1);                                                                                                  \
        }                                                                                                             \
    } while (0)

/* The call is refused, with a text that has these letters. */
#define REFUSED(call, wanted, text)                                                                                   \
    do {                                                                                                              \
        ropewalk_error *error = NULL;                                                                                 \
        CHECK((call) == (wanted) && error != NULL);                                                                   \
        if (strstr(ropewalk_error_message(error), text) == NULL) {                                                    \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, ropewalk_error_message(error));                        \
            exit(1);                                                                                                  \
        }                                                                                                             \
        ropewalk_error_free(error);                                                                                   \
    } while (0)

#endif
