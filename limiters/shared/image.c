/* Reads images of device code (image.h). A part that cannot be read counts as no bytes and sets has_unread. Then the
 * driver's figure after the load is what it took. */
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

static uint64_t product(uint64_t left, uint64_t right)
{
    uint64_t result;
    return __builtin_mul_overflow(left, right, &result) ? UINT64_MAX : result;
}

static uint64_t sum(uint64_t left, uint64_t right)
{
    uint64_t result;
    return __builtin_add_overflow(left, right, &result) ? UINT64_MAX : result;
}

static bool has_prefix(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

static uint64_t aligned(uint64_t value, uint64_t alignment)
{
    return alignment < 2 ? value : product(sum(value, alignment - 1) / alignment, alignment);
}

/* ------------------------------------------------------------------------------------------------------------- ELF */

#ifndef EM_AMDGPU
#define EM_AMDGPU 224 /* assigned after glibc 2.17 */
#endif

/* Whether `bytes` bytes at an offset lie in the data and are readable. The size of data in memory is not known. */
static bool has_part(const char *data, uint64_t size_bytes, uint64_t offset, uint64_t bytes)
{
    return sum(offset, bytes) <= size_bytes && is_readable(data + offset, bytes);
}

/* The memory of AMD's images. AMD's loader places all segments, code and arrays, in one allocation, at offsets that are
 * their addresses. UINT64_MAX: the segments cannot be read. */
static uint64_t segment_bytes(const char *data, uint64_t size_bytes, const Elf64_Ehdr *header)
{
    uint64_t end_address = 0;
    Elf64_Phdr segment;
    if (header->e_phnum == 0)
        return 0;
    if (header->e_phentsize != sizeof segment ||
        !has_part(data, size_bytes, header->e_phoff, (uint64_t)header->e_phnum * sizeof segment))
        return UINT64_MAX;
    for (unsigned index = 0; index < header->e_phnum; index++) {
        memcpy(&segment, data + header->e_phoff + index * sizeof segment, sizeof segment);
        uint64_t segment_end = sum(FAULT_VALUE(segments_by_offset, segment.p_vaddr, segment.p_offset), segment.p_memsz);
        end_address = segment.p_type == PT_LOAD && segment_end > end_address ? segment_end : end_address;
    }
    return end_address;
}

static void add_section(struct image *image, const Elf64_Shdr *section, bool is_global)
{
    if (is_global)
        image->global_bytes = sum(aligned(image->global_bytes, section->sh_addralign), section->sh_size);
    else if ((section->sh_flags & SHF_ALLOC) != 0 && section->sh_type != SHT_NOBITS)
        image->code_bytes = sum(image->code_bytes, section->sh_size);
}

/* Whether the file has sections with names. */
static bool has_sections(const char *data, uint64_t size_bytes, const Elf64_Ehdr *header)
{
    return header->e_ident[EI_CLASS] == ELFCLASS64 && header->e_shentsize == sizeof(Elf64_Shdr) &&
           header->e_shstrndx < header->e_shnum &&
           has_part(data, size_bytes, header->e_shoff, (uint64_t)header->e_shnum * sizeof(Elf64_Shdr));
}

/* Arrays are in .nv.global and .nv.global.init, with their sizes on the device. Other loaded sections are code. */
static struct image read_elf(const char *data, uint64_t size_bytes)
{
    Elf64_Ehdr header = {0};
    memcpy(&header, data, size_bytes < sizeof header ? size_bytes : sizeof header);
    if (header.e_machine == EM_AMDGPU)
        return (struct image){.global_bytes = segment_bytes(data, size_bytes, &header)};
    if (!has_sections(data, size_bytes, &header))
        return (struct image){.has_unread = true};
    struct image image = {0};
    const char *sections = data + header.e_shoff;
    Elf64_Shdr names, section;
    memcpy(&names, sections + header.e_shstrndx * sizeof names, sizeof names);
    bool has_names = has_part(data, size_bytes, names.sh_offset, names.sh_size);
    image.has_unread = !has_names;
    for (unsigned index = 0; index < header.e_shnum; index++) {
        memcpy(&section, sections + index * sizeof section, sizeof section);
        add_section(&image, &section,
                    has_names && section.sh_name < names.sh_size &&
                        has_prefix(data + names.sh_offset + section.sh_name, ".nv.global"));
    }
    return image;
}

/* ------------------------------------------------------------------------------------------------------------- PTX */

/* The text after spaces and comments. */
static const char *skip_space(const char *cursor)
{
    for (;;) {
        if (*cursor == ' ' || (*cursor >= '\t' && *cursor <= '\r')) {
            cursor++;
        } else if (strncmp(cursor, "//", 2) == 0) {
            while (*cursor != '\0' && *cursor != '\n')
                cursor++;
        } else if (strncmp(cursor, "/*", 2) == 0) {
            for (cursor += 2; *cursor != '\0' && strncmp(cursor, "*/", 2) != 0;)
                cursor++;
            cursor += *cursor == '\0' ? 0 : 2;
        } else {
            return cursor;
        }
    }
}

static bool in_word(char character)
{
    return (character >= '0' && character <= '9') || ((character | 32) >= 'a' && (character | 32) <= 'z') ||
           character == '_';
}

/* The length of a word that begins with a dot. */
static size_t word_length(const char *text)
{
    size_t length = 1;
    while (in_word(text[length]))
        length++;
    return length;
}

/* Parse a number as C writes it. */
static uint64_t parse_number(const char **cursor)
{
    uint64_t value = 0, base = 10;
    if (**cursor == '0') {
        base = ((*cursor)[1] | 32) == 'x' ? 16 : ((*cursor)[1] | 32) == 'b' ? 2 : 8;
        *cursor += base == 8 ? 1 : 2;
    }
    for (;; (*cursor)++) {
        char character = **cursor;
        uint64_t digit = character >= '0' && character <= '9' ? (uint64_t)(character - '0')
                                                              : (uint64_t)((character | 32) - 'a' + 10);
        if (!in_word(character) || character == '_' || digit >= base)
            return value;
        value = sum(product(value, base), digit);
    }
}

/* The bytes of a type such as .b8, .f16x2 or .u64: its first number / 8, doubled for x2; 0: not a type. */
static uint64_t bytes_of_type(const char *type, size_t length)
{
    const char *digits = type + 1;
    while (digits < type + length && (*digits < '0' || *digits > '9'))
        digits++;
    uint64_t bits = digits < type + length && strchr("bsuf", type[1]) != NULL ? parse_number(&digits) : 0;
    bool is_pair = length > 2 && type[length - 2] == 'x';
    return bits * (is_pair ? 2 : 1) / 8;
}

/* More nested parentheses than a compiler writes in a size. Each level is a recursive call. */
#define MAX_PARENTHESES 100

static uint64_t parse_expression(const char **cursor, unsigned strength, unsigned depth);

/* Parse a number or an expression in parentheses. With too many levels the rest of the text is skipped. */
static uint64_t parse_operand(const char **cursor, unsigned depth)
{
    *cursor = skip_space(*cursor);
    bool is_parenthesised = **cursor == '(';
    if (is_parenthesised && depth == MAX_PARENTHESES)
        *cursor = "";
    else if (is_parenthesised)
        ++*cursor;
    uint64_t value = is_parenthesised ? parse_expression(cursor, 0, depth + 1) : parse_number(cursor);
    *cursor = skip_space(*cursor);
    *cursor += (is_parenthesised && **cursor == ')') || (!is_parenthesised && **cursor == 'U');
    *cursor = skip_space(*cursor);
    return value;
}

/* How strongly an operator binds; 0: it is no operator that sizes are written with. */
static unsigned operator_strength(const char *text)
{
    if (*text == '*' || *text == '/' || *text == '%')
        return 3;
    if (*text == '+' || *text == '-')
        return 2;
    return has_prefix(text, "<<") || has_prefix(text, ">>") ? 1 : 0;
}

static uint64_t apply_operator(char operator_sign, uint64_t left, uint64_t right)
{
    switch (operator_sign) {
    case '*': return product(left, right);
    case '/': return right == 0 ? 0 : left / right;
    case '%': return right == 0 ? 0 : left % right;
    case '+': return sum(left, right);
    case '-': return left - right;
    case '<': return right > 63 || left > UINT64_MAX >> right ? UINT64_MAX : left << right;
    default: return right > 63 ? 0 : left >> right;
    }
}

/* Parse a constant expression of operators that bind more strongly than `strength`. */
static uint64_t parse_expression(const char **cursor, unsigned strength, unsigned depth)
{
    uint64_t value = parse_operand(cursor, depth);
    for (unsigned next_strength; (next_strength = operator_strength(*cursor)) > strength;) {
        char operator_sign = **cursor;
        *cursor += next_strength == 1 ? 2 : 1;
        value = apply_operator(operator_sign, value, parse_expression(cursor, next_strength, depth));
    }
    return value;
}

/* Parse an array's size in brackets: the number of elements. 0: it is no size; UINT64_MAX: the text ends before it. */
static uint64_t parse_array_length(const char **cursor)
{
    ++*cursor;
    uint64_t element_count = parse_expression(cursor, 0, 0);
    if (**cursor == '\0')
        return UINT64_MAX;
    bool is_closed = **cursor == ']';
    *cursor += is_closed;
    return is_closed ? element_count : 0;
}

/* Parse one declaration from behind its .global: the bytes of its arrays. */
static uint64_t parse_declaration(const char **cursor)
{
    uint64_t element_bytes = 0, vector_length = 1, bytes = 0, element_count = 0;
    for (*cursor = skip_space(*cursor); **cursor != ';' && **cursor != '=' && **cursor != '\0';
         *cursor = skip_space(*cursor)) {
        size_t length = **cursor == '.' ? word_length(*cursor) : 1;
        if (**cursor == '.' && (*cursor)[1] == 'v')
            vector_length = (uint64_t)((*cursor)[2] - '0');
        else if (**cursor == '.' && element_bytes == 0)
            element_bytes = bytes_of_type(*cursor, length);
        if (**cursor == '[') {
            element_count = product(element_count == 0 ? 1 : element_count, parse_array_length(cursor));
            continue;
        }
        if (**cursor == ',') {
            bytes = sum(bytes, product(element_count == 0 ? 1 : element_count, product(element_bytes, vector_length)));
            element_count = 0;
        }
        *cursor += length;
    }
    return sum(bytes, product(element_count == 0 ? 1 : element_count, product(element_bytes, vector_length)));
}

/* The next position where a word may start. `preceding` is set to the character before it. */
static const char *next_word_place(const char *cursor, char *preceding)
{
    const char *next = skip_space(cursor + 1);
    *preceding = next == cursor + 1 ? *cursor : ' ';
    return next;
}

/* An instruction is 16 bytes of code, and rarely has fewer characters, but loops are unrolled. Chosen, not measured. */
#define CODE_BYTES_PER_CHARACTER 2

/* Scan one position of a text. Returns whether it is within a call instruction, from its first word to its semicolon.
 */
static bool scan_call(struct image *image, const char *cursor, char preceding, bool is_in_call)
{
    bool is_word_start = !in_word(preceding);
    image->calls_malloc = image->calls_malloc || (is_in_call && is_word_start && has_prefix(cursor, "malloc"));
    image->calls_printf = image->calls_printf || (is_in_call && is_word_start && has_prefix(cursor, "vprintf"));
    return (is_in_call && *cursor != ';') || (is_word_start && has_prefix(cursor, "call"));
}

static struct image read_ptx(const char *text)
{
    struct image image = {0};
    uint64_t character_count = 0;
    bool is_external = false, is_in_call = false; /* is_external: after .extern, or after .ptr of a parameter */
    char preceding = '\n';
    for (const char *cursor = skip_space(text); *cursor != '\0'; character_count++) {
        if (has_prefix(cursor, ".extern") || has_prefix(cursor, ".ptr") || *cursor == ';')
            is_external = *cursor == '.';
        is_in_call = scan_call(&image, cursor, preceding, is_in_call);
        if (has_prefix(cursor, ".global") && word_length(cursor) == strlen(".global") && !in_word(preceding)) {
            cursor += strlen(".global");
            uint64_t bytes = parse_declaration(&cursor);
            image.global_bytes = sum(image.global_bytes, is_external ? 0 : bytes);
        } else {
            cursor = next_word_place(cursor, &preceding);
        }
    }
    image.code_bytes = product(character_count, CODE_BYTES_PER_CHARACTER);
    return image;
}

/* ---------------------------------------------------------------------------------------------------------- bundles */

/* A bundle of images for several cards: a count, and for each image its offset, its size, the length of its name and
 * the name (ClangOffloadBundler). The largest one counts. */
#define BUNDLE_MAGIC "__CLANG_OFFLOAD_BUNDLE__"

static bool is_bundle(const void *data, uint64_t size_bytes)
{
    return size_bytes > sizeof BUNDLE_MAGIC + sizeof(uint64_t) && memcmp(data, BUNDLE_MAGIC, strlen(BUNDLE_MAGIC)) == 0;
}

static struct image read_bundle(const char *data, uint64_t size_bytes)
{
    struct image largest = {0};
    uint64_t image_count, offset = strlen(BUNDLE_MAGIC) + sizeof image_count, entry[3];
    memcpy(&image_count, data + strlen(BUNDLE_MAGIC), sizeof image_count);
    for (uint64_t index = 0; index < image_count && has_part(data, size_bytes, offset, sizeof entry); index++) {
        memcpy(entry, data + offset, sizeof entry);
        offset = sum(sum(offset, sizeof entry), entry[2]);
        if (entry[1] <= sizeof(Elf64_Ehdr) || !has_part(data, size_bytes, entry[0], sizeof(Elf64_Ehdr)) ||
            sum(entry[0], entry[1]) > size_bytes || memcmp(data + entry[0], ELFMAG, SELFMAG) != 0)
            continue;
        struct image image = read_elf(data + entry[0], entry[1]);
        largest = image.global_bytes >= largest.global_bytes ? image : largest;
    }
    return largest;
}

/* ------------------------------------------------------------------------------------------------------------------ */

/* The driver loads one of the images. The maximum of each figure counts. */
static struct image read_fat(const void *data, uint64_t size_bytes)
{
    struct image maximum = {.has_unread = fat_size(data, size_bytes) == 0};
    struct fat_image fat_image;
    for (uint64_t offset = 0; fat_next(data, size_bytes, &offset, &fat_image); free(fat_image.owned_copy)) {
        struct image image = {.has_unread = true};
        if (fat_image.data != NULL && fat_image.is_text)
            image = read_ptx(fat_image.data);
        else if (fat_image.data != NULL && fat_image.size_bytes > SELFMAG &&
                 memcmp(fat_image.data, ELFMAG, SELFMAG) == 0)
            image = read_elf(fat_image.data, fat_image.size_bytes);
        maximum.code_bytes = image.code_bytes > maximum.code_bytes ? image.code_bytes : maximum.code_bytes;
        maximum.global_bytes = image.global_bytes > maximum.global_bytes ? image.global_bytes : maximum.global_bytes;
        maximum.calls_malloc = maximum.calls_malloc || image.calls_malloc;
        maximum.calls_printf = maximum.calls_printf || image.calls_printf;
        maximum.has_unread = maximum.has_unread || image.has_unread;
    }
    return maximum;
}

static struct image read_sized(const void *data, uint64_t size_bytes)
{
    uint32_t magic;
    memcpy(&magic, data, sizeof magic);
    bool has_linked_parts = false;
    if (magic == FATBIN_WRAPPER_MAGIC && size_bytes == UINT64_MAX) {
        has_linked_parts = ((const struct fatbin_wrapper *)data)->version > 1;
        data = ((const struct fatbin_wrapper *)data)->data;
        memcpy(&magic, data, sizeof magic);
    }
    if (magic == FATBIN_MAGIC && !FAULT(fat_binaries_unread)) {
        struct image image = read_fat(data, size_bytes);
        image.has_unread = image.has_unread || has_linked_parts;
        return image;
    }
    if (memcmp(&magic, "__CL", sizeof magic) == 0 && is_bundle(data, size_bytes))
        return read_bundle(data, size_bytes);
    return memcmp(&magic, ELFMAG, SELFMAG) == 0 ? read_elf(data, size_bytes) : read_ptx(data);
}

struct image image_of_code(const void *data, uint64_t size_bytes)
{
    bool is_elf = data != NULL && size_bytes >= sizeof(Elf64_Ehdr) && memcmp(data, ELFMAG, SELFMAG) == 0;
    return is_elf ? read_elf(data, size_bytes) : (struct image){.has_unread = true};
}

struct image image_read(const void *data)
{
    return data == NULL ? (struct image){0} : read_sized(data, UINT64_MAX);
}

#define ZEROS 16 /* appended, so that PTX ends with a NUL */

struct image image_of_file(const char *path)
{
    struct image image = {0};
    int fd = path != NULL ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    off_t file_bytes = fd >= 0 ? lseek(fd, 0, SEEK_END) : -1;
    char *data = file_bytes > 0 ? calloc((size_t)file_bytes + ZEROS, 1) : NULL;
    if (data != NULL && pread(fd, data, (size_t)file_bytes, 0) == file_bytes)
        image = read_sized(data, (uint64_t)file_bytes);
    free(data);
    if (fd >= 0)
        close(fd);
    return image;
}
