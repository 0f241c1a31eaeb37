/* What the tests of limiters/core stand on: expectations, a usage region in a directory of its own, and a list of
 * tests, of which a program runs the one it is given, or prints their names.
 */
#ifndef HETERO_TESTS_CHECK_H
#define HETERO_TESTS_CHECK_H

#include "../../../limiters/core/region.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPECT(expected, actual)                                                                                       \
    do {                                                                                                               \
        long long expected_ = (long long)(expected), actual_ = (long long)(actual);                                    \
        if (expected_ != actual_) {                                                                                    \
            printf("%s:%d: %s: expected %lld, got %lld\n", __FILE__, __LINE__, #actual, expected_, actual_);           \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

#define EXPECT_NEAR(expected, slack, actual)                                                                           \
    do {                                                                                                               \
        double expected_ = (expected), actual_ = (actual);                                                             \
        if (actual_ < expected_ - (slack) || actual_ > expected_ + (slack)) {                                          \
            printf("%s:%d: %s: expected %g within %g, got %g\n", __FILE__, __LINE__, #actual, expected_,               \
                   (double)(slack), actual_);                                                                          \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

#define MS UINT64_C(1000000)
#define US UINT64_C(1000)

static char directory[] __attribute__((unused)) = "/tmp/hetero-core-XXXXXX";

static inline void remove_directory(void)
{
    char path[64];
    snprintf(path, sizeof path, "%s/usage", directory);
    unlink(path);
    rmdir(directory);
}

static pid_t owner __attribute__((unused));

static inline void remove_directory_once(void)
{
    if (getpid() == owner)
        remove_directory();
}

static inline const char *usage_file(void)
{
    static char path[64];
    if (mkdtemp(directory) == NULL)
        exit(1);
    owner = getpid();
    atexit(remove_directory_once);
    snprintf(path, sizeof path, "%s/usage", directory);
    int file = open(path, O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, sizeof(struct hetero_region)) != 0)
        exit(1);
    close(file);
    return path;
}

struct test {
    const char *name;
    void (*run)(void);
    struct test *next;
};

static struct test *tests, **last = &tests;
static int word_count;
static char **words; /* of the command line, from the name of the test on */

/* Returns the number at a place behind the name of the test, `usual` where the command line has none. */
static inline double given(int place, double usual)
{
    return place < word_count ? strtod(words[place], NULL) : usual;
}

/* Begins a test, which is put on the list before the program starts. */
#define TEST(name_)                                                                                                    \
    static void name_(void);                                                                                           \
    static void __attribute__((constructor)) list_##name_(void)                                                        \
    {                                                                                                                  \
        static struct test test = {.name = #name_, .run = name_};                                                      \
        *last = &test, last = &test.next;                                                                              \
    }                                                                                                                  \
    static void name_(void)

int main(int count, char **arguments)
{
    word_count = count - 1, words = arguments + 1;
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (const struct test *test = tests; test != NULL; test = test->next) {
        if (word_count == 0)
            puts(test->name);
        else if (strcmp(words[0], test->name) == 0)
            return test->run(), 0;
    }
    return word_count == 0 ? 0 : 2;
}

#endif
