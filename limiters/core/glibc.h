/* Bind to the oldest version of each libc symbol that changed since glibc 2.17, so that a library built here loads
 * there. Included first by the compiler (-include); tests/limiters/test_library.py reads the result back.
 */
#ifndef HETERO_GLIBC_H
#define HETERO_GLIBC_H

#if defined(__x86_64__)
#define HETERO_GLIBC_BASE "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define HETERO_GLIBC_BASE "GLIBC_2.17"
#else
#error "the limiter knows x86_64 and aarch64"
#endif

#define HETERO_BIND(name, version) __asm__(".symver " #name "," #name "@" version)

HETERO_BIND(pthread_create, HETERO_GLIBC_BASE);
HETERO_BIND(pthread_detach, HETERO_GLIBC_BASE);
HETERO_BIND(pthread_mutex_trylock, HETERO_GLIBC_BASE);
HETERO_BIND(pthread_sigmask, HETERO_GLIBC_BASE);

#endif
