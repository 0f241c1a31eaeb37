/* Reads images of device code (image.h). What is not understood counts as nothing and is said to be unread: the
 * driver's figure tells after the load. */
#include "image.h"

#include "../core/fault.h"
#include "../cuda/fatbin.h"
#include "fat.h"
#include "readable.h"

#include <elf.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint64_t product(uint64_t one, uint64_t other)
{
    uint64_t result;
    return __builtin_mul_overflow(one, other, &result) ? UINT64_MAX : result;
}

static uint64_t sum(uint64_t one, uint64_t other)
{
    uint64_t result;
    return __builtin_add_overflow(one, other, &result) ? UINT64_MAX : result;
}

static bool starts(const char *at, const char *text)
{
    return strncmp(at, text, strlen(text)) == 0;
}

static uint64_t aligned(uint64_t value, uint64_t to)
{
    return to < 2 ? value : product(sum(value, to - 1) / to, to);
}

/* ------------------------------------------------------------------------------------------------------------- ELF */

#ifndef EM_AMDGPU
#define EM_AMDGPU 224 /* assigned after glibc 2.17 */
#endif

/* Whether so many bytes lie at an offset of what is there. In memory its size is not known. */
static bool has_part(const char *data, uint64_t size, uint64_t offset, uint64_t bytes)
{
    return sum(offset, bytes) <= size && readable(data + offset, bytes);
}

/* AMD's loader places all segments in one piece of memory, code and arrays, as far behind its start as their addresses
 * say. Segments that are not there have no end. */
static uint64_t segments(const char *data, uint64_t size, const Elf64_Ehdr *head)
{
    uint64_t end = 0;
    Elf64_Phdr segment;
    if (head->e_phnum == 0)
        return 0;
    if (head->e_phentsize != sizeof segment ||
        !has_part(data, size, head->e_phoff, (uint64_t)head->e_phnum * sizeof segment))
        return UINT64_MAX;
    for (unsigned i = 0; i < head->e_phnum; i++) {
        memcpy(&segment, data + head->e_phoff + i * sizeof segment, sizeof segment);
        uint64_t past = sum(FAULT_VALUE(segments_by_offset, segment.p_vaddr, segment.p_offset), segment.p_memsz);
        end = segment.p_type == PT_LOAD && past > end ? past : end;
    }
    return end;
}

static void add_section(struct image *image, const Elf64_Shdr *section, bool arrays)
{
    if (arrays)
        image->globals = sum(aligned(image->globals, section->sh_addralign), section->sh_size);
    else if ((section->sh_flags & SHF_ALLOC) != 0 && section->sh_type != SHT_NOBITS)
        image->code = sum(image->code, section->sh_size);
}

/* Whether there are sections, with names. */
static bool has_sections(const char *data, uint64_t size, const Elf64_Ehdr *head)
{
    return head->e_ident[EI_CLASS] == ELFCLASS64 && head->e_shentsize == sizeof(Elf64_Shdr) &&
           head->e_shstrndx < head->e_shnum &&
           has_part(data, size, head->e_shoff, (uint64_t)head->e_shnum * sizeof(Elf64_Shdr));
}

/* Arrays are in .nv.global and .nv.global.init, whose sizes are those on the device. What else is loaded is code. */
static struct image read_elf(const char *data, uint64_t size)
{
    Elf64_Ehdr head = {0};
    memcpy(&head, data, size < sizeof head ? size : sizeof head);
    if (head.e_machine == EM_AMDGPU)
        return (struct image){.globals = segments(data, size, &head)};
    if (!has_sections(data, size, &head))
        return (struct image){.unread = true};
    struct image image = {0};
    const char *sections = data + head.e_shoff;
    Elf64_Shdr names, section;
    memcpy(&names, sections + head.e_shstrndx * sizeof names, sizeof names);
    bool named = has_part(data, size, names.sh_offset, names.sh_size);
    image.unread = !named;
    for (unsigned i = 0; i < head.e_shnum; i++) {
        memcpy(&section, sections + i * sizeof section, sizeof section);
        add_section(&image, &section,
                    named && section.sh_name < names.sh_size &&
                        starts(data + names.sh_offset + section.sh_name, ".nv.global"));
    }
    return image;
}

/* ------------------------------------------------------------------------------------------------------------- PTX */

/* Past spaces and comments. */
static const char *skip_space(const char *at)
{
    for (;;) {
        if (*at == ' ' || (*at >= '\t' && *at <= '\r')) {
            at++;
        } else if (strncmp(at, "//", 2) == 0) {
            while (*at != '\0' && *at != '\n')
                at++;
        } else if (strncmp(at, "/*", 2) == 0) {
            for (at += 2; *at != '\0' && strncmp(at, "*/", 2) != 0;)
                at++;
            at += *at == '\0' ? 0 : 2;
        } else {
            return at;
        }
    }
}

static bool in_word(char c)
{
    return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') || c == '_';
}

/* What follows a dot: a word. */
static size_t word(const char *at)
{
    size_t length = 1;
    while (in_word(at[length]))
        length++;
    return length;
}

/* A number as C writes it. */
static uint64_t number(const char **at)
{
    uint64_t value = 0, base = 10;
    if (**at == '0') {
        base = ((*at)[1] | 32) == 'x' ? 16 : ((*at)[1] | 32) == 'b' ? 2 : 8;
        *at += base == 8 ? 1 : 2;
    }
    for (;; (*at)++) {
        char c = **at;
        uint64_t digit = c >= '0' && c <= '9' ? (uint64_t)(c - '0') : (uint64_t)((c | 32) - 'a' + 10);
        if (!in_word(c) || c == '_' || digit >= base)
            return value;
        value = sum(product(value, base), digit);
    }
}

/* Bytes of a type such as .b8, .f16x2 or .u64: its first number, doubled for x2; 0: not a type. */
static uint64_t type_bytes(const char *at, size_t length)
{
    const char *digits = at + 1;
    while (digits < at + length && (*digits < '0' || *digits > '9'))
        digits++;
    uint64_t bits = digits < at + length && strchr("bsuf", at[1]) != NULL ? number(&digits) : 0;
    bool pair = length > 2 && at[length - 2] == 'x';
    return bits * (pair ? 2 : 1) / 8;
}

/* More than a compiler writes within each other in a size: each takes some of the stack. */
#define MOST_PARENTHESES 100

static uint64_t value_of(const char **at, unsigned strength, unsigned depth);

/* A number or what is in parentheses. With too many nothing of the text is read any more. */
static uint64_t operand(const char **at, unsigned depth)
{
    *at = skip_space(*at);
    bool inner = **at == '(';
    if (inner && depth == MOST_PARENTHESES)
        *at = "";
    else if (inner)
        ++*at;
    uint64_t value = inner ? value_of(at, 0, depth + 1) : number(at);
    *at = skip_space(*at);
    *at += (inner && **at == ')') || (!inner && **at == 'U');
    *at = skip_space(*at);
    return value;
}

/* How strongly an operator binds; 0: it is none of those that sizes are written with. */
static unsigned strength_of(const char *at)
{
    if (*at == '*' || *at == '/' || *at == '%')
        return 3;
    if (*at == '+' || *at == '-')
        return 2;
    return starts(at, "<<") || starts(at, ">>") ? 1 : 0;
}

static uint64_t combined(char sign, uint64_t one, uint64_t other)
{
    switch (sign) {
    case '*': return product(one, other);
    case '/': return other == 0 ? 0 : one / other;
    case '%': return other == 0 ? 0 : one % other;
    case '+': return sum(one, other);
    case '-': return one - other;
    case '<': return other > 63 || one > UINT64_MAX >> other ? UINT64_MAX : one << other;
    default: return other > 63 ? 0 : one >> other;
    }
}

/* A constant expression of operators that bind more strongly than `strength`. */
static uint64_t value_of(const char **at, unsigned strength, unsigned depth)
{
    uint64_t value = operand(at, depth);
    for (unsigned binds; (binds = strength_of(*at)) > strength;) {
        char sign = **at;
        *at += binds == 1 ? 2 : 1;
        value = combined(sign, value, value_of(at, binds, depth));
    }
    return value;
}

/* What an array's size is written as. 0: it is something else; as much as there is: it has no end. */
static uint64_t size_of_array(const char **at)
{
    ++*at;
    uint64_t elements = value_of(at, 0, 0);
    if (**at == '\0')
        return UINT64_MAX;
    bool closed = **at == ']';
    *at += closed;
    return closed ? elements : 0;
}

/* The arrays of one declaration, from after its .global to its end: bytes. */
static uint64_t declared(const char **at)
{
    uint64_t element = 0, vector = 1, bytes = 0, elements = 0;
    for (*at = skip_space(*at); **at != ';' && **at != '=' && **at != '\0'; *at = skip_space(*at)) {
        size_t length = **at == '.' ? word(*at) : 1;
        if (**at == '.' && (*at)[1] == 'v')
            vector = (uint64_t)((*at)[2] - '0');
        else if (**at == '.' && element == 0)
            element = type_bytes(*at, length);
        if (**at == '[') {
            elements = product(elements == 0 ? 1 : elements, size_of_array(at));
            continue;
        }
        if (**at == ',') {
            bytes = sum(bytes, product(elements == 0 ? 1 : elements, product(element, vector)));
            elements = 0;
        }
        *at += length;
    }
    return sum(bytes, product(elements == 0 ? 1 : elements, product(element, vector)));
}

/* The next place where a word may start; its first character's neighbour in `before`. */
static const char *next_place(const char *at, char *before)
{
    const char *next = skip_space(at + 1);
    *before = next == at + 1 ? *at : ' ';
    return next;
}

/* An instruction is 16 bytes of code, and seldom less than as many characters (loops are unrolled). Chosen. */
#define CODE_OF_TEXT 2

/* One place of a text: whether it is within a call, from its first word to its semicolon. */
static bool note_call(struct image *image, const char *at, char before, bool in_call)
{
    bool begins = !in_word(before);
    image->mallocs = image->mallocs || (in_call && begins && starts(at, "malloc"));
    image->prints = image->prints || (in_call && begins && starts(at, "vprintf"));
    return (in_call && *at != ';') || (begins && starts(at, "call"));
}

static struct image read_ptx(const char *text)
{
    struct image image = {0};
    uint64_t characters = 0;
    bool outside = false, in_call = false; /* outside: declared .extern, or where a parameter points to */
    char before = '\n';
    for (const char *at = skip_space(text); *at != '\0'; characters++) {
        if (starts(at, ".extern") || starts(at, ".ptr") || *at == ';')
            outside = *at == '.';
        in_call = note_call(&image, at, before, in_call);
        if (starts(at, ".global") && word(at) == strlen(".global") && !in_word(before)) {
            at += strlen(".global");
            uint64_t bytes = declared(&at);
            image.globals = sum(image.globals, outside ? 0 : bytes);
        } else {
            at = next_place(at, &before);
        }
    }
    image.code = product(characters, CODE_OF_TEXT);
    return image;
}

/* ---------------------------------------------------------------------------------------------------------- bundles */

/* Images for several cards: a count, and for each where it is, how large, and how long its name is, which follows
 * (ClangOffloadBundler). The largest is meant. */
#define BUNDLE_MAGIC "__CLANG_OFFLOAD_BUNDLE__"

static bool is_bundle(const void *data, uint64_t size)
{
    return size > sizeof BUNDLE_MAGIC + sizeof(uint64_t) && memcmp(data, BUNDLE_MAGIC, strlen(BUNDLE_MAGIC)) == 0;
}

static struct image read_bundle(const char *data, uint64_t size)
{
    struct image largest = {0};
    uint64_t count, at = strlen(BUNDLE_MAGIC) + sizeof count, entry[3];
    memcpy(&count, data + strlen(BUNDLE_MAGIC), sizeof count);
    for (uint64_t i = 0; i < count && has_part(data, size, at, sizeof entry); i++) {
        memcpy(entry, data + at, sizeof entry);
        at = sum(sum(at, sizeof entry), entry[2]);
        if (entry[1] <= sizeof(Elf64_Ehdr) || !has_part(data, size, entry[0], sizeof(Elf64_Ehdr)) ||
            sum(entry[0], entry[1]) > size || memcmp(data + entry[0], ELFMAG, SELFMAG) != 0)
            continue;
        struct image image = read_elf(data + entry[0], entry[1]);
        largest = image.globals >= largest.globals ? image : largest;
    }
    return largest;
}

/* ------------------------------------------------------------------------------------------------------------------ */

/* The driver takes one image of them: what may be the most of each is meant. */
static struct image read_fat(const void *data, uint64_t size)
{
    struct image most = {.unread = fat_size(data, size) == 0};
    struct fat_image part;
    for (uint64_t at = 0; fat_next(data, size, &at, &part); free(part.copy)) {
        struct image image = {.unread = true};
        if (part.data != NULL && part.text)
            image = read_ptx(part.data);
        else if (part.data != NULL && part.size > SELFMAG && memcmp(part.data, ELFMAG, SELFMAG) == 0)
            image = read_elf(part.data, part.size);
        most.code = image.code > most.code ? image.code : most.code;
        most.globals = image.globals > most.globals ? image.globals : most.globals;
        most.mallocs = most.mallocs || image.mallocs;
        most.prints = most.prints || image.prints;
        most.unread = most.unread || image.unread;
    }
    return most;
}

static struct image read_sized(const void *data, uint64_t size)
{
    uint32_t magic;
    memcpy(&magic, data, sizeof magic);
    bool linked = false;
    if (magic == FATBIN_WRAPPER_MAGIC && size == UINT64_MAX) {
        linked = ((const struct fatbin_wrapper *)data)->version > 1;
        data = ((const struct fatbin_wrapper *)data)->data;
        memcpy(&magic, data, sizeof magic);
    }
    if (magic == FATBIN_MAGIC && !FAULT(fat_binaries_unread)) {
        struct image image = read_fat(data, size);
        image.unread = image.unread || linked;
        return image;
    }
    if (memcmp(&magic, "__CL", sizeof magic) == 0 && is_bundle(data, size))
        return read_bundle(data, size);
    return memcmp(&magic, ELFMAG, SELFMAG) == 0 ? read_elf(data, size) : read_ptx(data);
}

struct image image_of_code(const void *data, uint64_t size)
{
    bool elf = data != NULL && size >= sizeof(Elf64_Ehdr) && memcmp(data, ELFMAG, SELFMAG) == 0;
    return elf ? read_elf(data, size) : (struct image){.unread = true};
}

struct image image_read(const void *data)
{
    return data == NULL ? (struct image){0} : read_sized(data, UINT64_MAX);
}

#define ZEROS 16 /* so that PTX has an end, and a name */

struct image image_of_file(const char *path)
{
    struct image image = {0};
    int file = path != NULL ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    off_t size = file >= 0 ? lseek(file, 0, SEEK_END) : -1;
    char *data = size > 0 ? calloc((size_t)size + ZEROS, 1) : NULL;
    if (data != NULL && pread(file, data, (size_t)size, 0) == size)
        image = read_sized(data, (uint64_t)size);
    free(data);
    if (file >= 0)
        close(file);
    return image;
}
