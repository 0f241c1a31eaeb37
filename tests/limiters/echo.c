/* A driver that does nothing but say how it was called: every function of an api.def that a limiter answers. Compiled
 * with API naming the list; what a function was given is in echo_words, integers and pointers as 64 bits each.
 */
#include "types.h"

#include <string.h>

#define EXPORT __attribute__((visibility("default")))

/* Of the last call, by whoever looks; nothing here is for threads. */
EXPORT const char *echo_name;
EXPORT uint64_t echo_words[12];
EXPORT unsigned echo_calls;

static result_t echo(const char *name, const uint64_t *words, unsigned count)
{
    echo_name = name;
    echo_calls++;
    for (unsigned i = 0; i < 12; i++)
        echo_words[i] = i < count ? words[i] : 0;
    return (result_t)(30000 + count);
}

static uint64_t word_of(const void *argument, size_t size)
{
    uint64_t word = 0;
    memcpy(&word, argument, size < sizeof word ? size : sizeof word);
    return word;
}

#define WORD(argument)                                     word_of(&argument, sizeof argument)
#define WORDS_1(a)                                         WORD(a)
#define WORDS_2(a, ...)                                    WORD(a), WORDS_1(__VA_ARGS__)
#define WORDS_3(a, ...)                                    WORD(a), WORDS_2(__VA_ARGS__)
#define WORDS_4(a, ...)                                    WORD(a), WORDS_3(__VA_ARGS__)
#define WORDS_5(a, ...)                                    WORD(a), WORDS_4(__VA_ARGS__)
#define WORDS_6(a, ...)                                    WORD(a), WORDS_5(__VA_ARGS__)
#define WORDS_7(a, ...)                                    WORD(a), WORDS_6(__VA_ARGS__)
#define WORDS_8(a, ...)                                    WORD(a), WORDS_7(__VA_ARGS__)
#define WORDS_9(a, ...)                                    WORD(a), WORDS_8(__VA_ARGS__)
#define WORDS_10(a, ...)                                   WORD(a), WORDS_9(__VA_ARGS__)
#define WORDS_11(a, ...)                                   WORD(a), WORDS_10(__VA_ARGS__)
#define PICK(a, b, c, d, e, f, g, h, i, j, k, chosen, ...) chosen
#define WORDS(...)                                                                                                     \
    PICK(__VA_ARGS__, WORDS_11, WORDS_10, WORDS_9, WORDS_8, WORDS_7, WORDS_6, WORDS_5, WORDS_4, WORDS_3, WORDS_2,      \
         WORDS_1)(__VA_ARGS__)

#define ECHO(name, parameters, arguments)                                                                              \
    EXPORT result_t name parameters                                                                                    \
    {                                                                                                                  \
        const uint64_t words[] = {WORDS arguments};                                                                    \
        return echo(#name, words, sizeof words / sizeof *words);                                                       \
    }
#define OWN(name, parameters, arguments, body)              ECHO(name, parameters, arguments)
#define OWN_IN(name, none, parameters, arguments, body)     ECHO(name, parameters, arguments)
#define GATED_IN(name, none, parameters, arguments, stream) ECHO(name, parameters, arguments)
#define USED(name, ...)
#include API

/* Their names, each with its end. */
EXPORT const char echo_names[] =
#define OWN(name, ...)      #name "\0"
#define OWN_IN(name, ...)   #name "\0"
#define GATED_IN(name, ...) #name "\0"
#define USED(name, ...)
#include API
    "";
EXPORT const unsigned echo_names_size = sizeof echo_names - 1;
