/* The memory that a module's image needs: variables of PTX text (".global" and ".const" of the PTX ISA, section 5.4)
 * or of an ELF image (its sections .nv.global and .nv.global.init), and the driver's functions that its text calls. */
#include "driver.h"

#include <ctype.h>
#include <elf.h>
#include <stdlib.h>
#include <string.h>

static void declare(struct module *module, const char *name, size_t length, uint64_t offset, uint64_t size)
{
    module->globals = realloc(module->globals, (module->global_count + 1) * sizeof *module->globals);
    module->globals[module->global_count++] = (struct global){strndup(name, length), offset, size};
}

/* ELF. */

static void declare_section(struct module *module, const char *image, unsigned number, uint64_t offset)
{
    const Elf64_Ehdr *header = (const Elf64_Ehdr *)image;
    const Elf64_Shdr *sections = (const Elf64_Shdr *)(image + header->e_shoff);
    for (unsigned i = 0; i < header->e_shnum; i++) {
        if (sections[i].sh_type != SHT_SYMTAB)
            continue;
        const Elf64_Sym *symbols = (const Elf64_Sym *)(image + sections[i].sh_offset);
        const char *names = image + sections[sections[i].sh_link].sh_offset;
        for (uint64_t j = 0; j < sections[i].sh_size / sizeof *symbols; j++)
            if (symbols[j].st_shndx == number && ELF64_ST_TYPE(symbols[j].st_info) == STT_OBJECT)
                declare(module, names + symbols[j].st_name, strlen(names + symbols[j].st_name),
                        offset + symbols[j].st_value, symbols[j].st_size);
    }
}

static void read_elf(struct module *module, const char *image)
{
    const Elf64_Ehdr *header = (const Elf64_Ehdr *)image;
    const Elf64_Shdr *sections = (const Elf64_Shdr *)(image + header->e_shoff);
    const char *names = header->e_shnum ? image + sections[header->e_shstrndx].sh_offset : NULL;
    for (unsigned i = 0; i < header->e_shnum; i++) {
        const char *name = names + sections[i].sh_name;
        if (strcmp(name, ".nv.global") != 0 && strcmp(name, ".nv.global.init") != 0)
            continue;
        module->global_bytes = round_up(module->global_bytes, sections[i].sh_addralign ? sections[i].sh_addralign : 1);
        declare_section(module, image, i, module->global_bytes);
        module->global_bytes += sections[i].sh_size;
    }
}

/* PTX. */

static const char *skip_blank(const char *text)
{
    return text + strspn(text, " \t\r\n\f\v");
}

static size_t word_length(const char *text) /* the length of the name or directive that starts here */
{
    size_t length = strspn(text, ".%");
    while (isalnum((unsigned char)text[length]) || (text[length] && strchr("_$", text[length])))
        length++;
    return length;
}

static bool is_word(const char *text, size_t length, const char *expected)
{
    return length == strlen(expected) && !strncmp(text, expected, length);
}

static char *without_comments(const char *text)
{
    char *clean = strdup(text), *output = clean;
    for (const char *input = text; *input; input++) {
        if (!strncmp(input, "//", 2))
            input += strcspn(input, "\n") - 1;
        else if (!strncmp(input, "/*", 2) && strstr(input + 2, "*/"))
            input = strstr(input + 2, "*/") + 1;
        else
            *output++ = *input;
    }
    *output = '\0';
    return clean;
}

static uint64_t multiply(uint64_t left, uint64_t right)
{
    uint64_t product;
    return __builtin_mul_overflow(left, right, &product) ? UINT64_MAX / 2 : product;
}

static uint64_t parse_expression(const char **cursor, unsigned level);

static uint64_t parse_number(const char **cursor)
{
    *cursor = skip_blank(*cursor);
    uint64_t value;
    if (**cursor == '(') {
        ++*cursor;
        value = parse_expression(cursor, 0);
        *cursor = skip_blank(*cursor);
        *cursor += **cursor == ')';
        return value;
    }
    bool is_binary = (*cursor)[0] == '0' && ((*cursor)[1] | 0x20) == 'b';
    char *number_end;
    value = is_binary ? strtoull(*cursor + 2, &number_end, 2) : strtoull(*cursor, &number_end, 0);
    *cursor = number_end + (*number_end == 'U');
    return value;
}

/* A constant expression: shifts bind least, then sums, then products. */
static uint64_t parse_expression(const char **cursor, unsigned level)
{
    static const char *const operators[] = {"<>", "+-", "*/%"};
    if (level == sizeof operators / sizeof *operators)
        return parse_number(cursor);
    uint64_t left = parse_expression(cursor, level + 1);
    for (*cursor = skip_blank(*cursor); **cursor && strchr(operators[level], **cursor); *cursor = skip_blank(*cursor)) {
        char sign = **cursor;
        *cursor += level ? 1 : 2;
        uint64_t right = parse_expression(cursor, level + 1);
        switch (sign) {
        case '<': left <<= right & 63; break;
        case '>': left >>= right & 63; break;
        case '+': left += right; break;
        case '-': left -= right; break;
        case '*': left = multiply(left, right); break;
        default: left = !right ? 0 : sign == '/' ? left / right : left % right;
        }
    }
    return left;
}

/* The elements of the outermost list of an initialiser, which starts here; each stands for `inner` if it is no list. */
static uint64_t listed(const char *cursor, uint64_t inner)
{
    uint64_t count = 0;
    unsigned depth = 0;
    cursor = skip_blank(cursor);
    bool lists = *cursor == '{' && *skip_blank(cursor + 1) == '{';
    for (; *cursor && *cursor != ';'; cursor++) {
        if (*cursor == '{' && ++depth == 1 && *skip_blank(cursor + 1) != '}')
            count++;
        if (*cursor == '}' && --depth == 0)
            break;
        count += *cursor == ',' && depth == 1;
    }
    return lists ? count : (count + inner - 1) / inner;
}

static const char *skip_initialiser(const char *cursor)
{
    for (unsigned depth = 0; *cursor && *cursor != ';' && (depth || *cursor != ','); cursor++)
        depth += (*cursor == '{') - (*cursor == '}');
    return cursor;
}

/* The elements that "<count>[n][m] = {...}" after a name stands for; at is moved behind it. */
static uint64_t elements(const char **cursor)
{
    uint64_t count = 1;
    bool open = false; /* the first dimension is the initialiser's */
    *cursor = skip_blank(*cursor);
    if (**cursor == '<') {
        ++*cursor;
        count = parse_number(cursor);
        *cursor += strcspn(*cursor, ">") + 1;
    }
    for (*cursor = skip_blank(*cursor); **cursor == '['; *cursor = skip_blank(*cursor)) {
        *cursor = skip_blank(*cursor + 1);
        open |= **cursor == ']';
        count = **cursor == ']' ? count : multiply(count, parse_expression(cursor, 0));
        *cursor += strcspn(*cursor, "]") + 1;
    }
    if (open)
        count = **cursor == '=' ? multiply(count, listed(*cursor + 1, count)) : 0;
    *cursor = skip_initialiser(*cursor);
    return count;
}

struct kind { /* of the variables of a declaration */
    uint64_t vector_elements, element_bytes, alignment_bytes;
};

/* ".v4", ".align 8", ".f16x2": what one directive of a declaration adds. */
static const char *qualify(struct kind *kind, const char *cursor, size_t length)
{
    const char *end = cursor + length, *digits = cursor + strcspn(cursor, "0123456789");
    if (is_word(cursor, length, ".align")) {
        kind->alignment_bytes = parse_number(&end);
    } else if (is_word(cursor, length, ".attribute")) {
        end += strcspn(end, ")") + 1;
    } else if (digits < end && cursor[1] == 'v') {
        kind->vector_elements = strtoull(digits, NULL, 10);
    } else if (digits < end) {
        char *rest;
        kind->element_bytes = strtoull(digits, &rest, 10) / 8;
        kind->element_bytes *= *rest == 'x' ? strtoull(rest + 1, NULL, 10) : 1;
    }
    return end;
}

/* A variable's name, dimensions and initialiser. */
static const char *read_variable(struct module *module, const char *cursor, const struct kind *kind, bool elsewhere)
{
    const char *name = cursor;
    size_t length = word_length(cursor);
    cursor += length;
    uint64_t element_bytes = kind->vector_elements * kind->element_bytes,
             size = multiply(element_bytes, elements(&cursor));
    if (elsewhere)
        return cursor;
    module->global_bytes = round_up(module->global_bytes, kind->alignment_bytes ? kind->alignment_bytes
                                                          : element_bytes       ? element_bytes
                                                                                : 1);
    declare(module, name, length, module->global_bytes, size);
    module->global_bytes += size;
    return cursor;
}

/* The declaration after its ".global" or ".const". Opaque types (.texref) need no memory. */
static const char *read_variables(struct module *module, const char *cursor, bool elsewhere)
{
    struct kind kind = {.vector_elements = 1};
    for (cursor = skip_blank(cursor); *cursor && *cursor != ';'; cursor = skip_blank(cursor)) {
        size_t length = word_length(cursor);
        if (*cursor == '.')
            cursor = qualify(&kind, cursor, length);
        else if (length)
            cursor = read_variable(module, cursor, &kind, elsewhere);
        else
            cursor++;
    }
    return cursor;
}

static void read_ptx(struct module *module)
{
    unsigned depth = 0;     /* in functions and in lists of parameters */
    bool elsewhere = false; /* the statement is ".extern" */
    for (const char *cursor = module->ptx; *cursor;) {
        size_t length = word_length(cursor);
        if (!depth && *cursor == '.' && (is_word(cursor, length, ".global") || is_word(cursor, length, ".const"))) {
            cursor = read_variables(module, cursor + length, elsewhere);
            continue;
        }
        elsewhere |= is_word(cursor, length, ".extern");
        depth += *cursor == '{' || *cursor == '(';
        depth -= depth && (*cursor == '}' || *cursor == ')');
        elsewhere &= depth || (*cursor != ';' && *cursor != '}');
        cursor += length ? length : 1;
    }
}

/* Whether a "call" between the two names the function. */
static bool calls(const char *cursor, const char *end, const char *function)
{
    if (!strstr(cursor, function)) /* long texts have neither */
        return false;
    for (bool in_call = false; cursor < end && *cursor;) {
        size_t length = word_length(cursor);
        in_call = is_word(cursor, length, "call") || (in_call && *cursor != ';');
        if (in_call && is_word(cursor, length, function))
            return true;
        cursor += length ? length : 1;
    }
    return false;
}

void image_read(struct module *module, const char *image, bool binary)
{
    if (binary && !memcmp(image, ELFMAG, SELFMAG) && image[EI_CLASS] == ELFCLASS64)
        read_elf(module, image);
    if (binary)
        return;
    module->ptx = without_comments(image);
    read_ptx(module);
    module->calls_printf = calls(module->ptx, module->ptx + strlen(module->ptx), "vprintf");
    module->calls_malloc = calls(module->ptx, module->ptx + strlen(module->ptx), "malloc");
}

/* The function's name where the text declares it; NULL: it does not. */
static const char *entry(const char *ptx, const char *name)
{
    for (const char *cursor = ptx; (cursor = strstr(cursor, ".entry"));) {
        cursor = skip_blank(cursor + strlen(".entry"));
        if (is_word(cursor, word_length(cursor), name))
            return cursor;
    }
    return NULL;
}

bool image_declares(const struct module *module, const char *name)
{
    return !module->ptx || entry(module->ptx, name);
}

/* The text of a function, from its opening brace; `end`: its closing one. NULL: there is none. */
static const char *body_of(const struct module *module, const char *name, const char **end)
{
    const char *body = module->ptx ? entry(module->ptx, name) : NULL;
    unsigned depth = 0;
    if (!body)
        return NULL;
    body += strcspn(body, "{");
    for (*end = body; **end && (depth || *end == body); ++*end)
        depth += (**end == '{') - (**end == '}');
    return body;
}

/* Bytes of a thread's arrays in .local. */
uint64_t image_local(const struct module *module, const char *name)
{
    const char *end, *cursor = body_of(module, name, &end);
    struct module arrays = {0};
    while (cursor && (cursor = strstr(cursor, ".local")) && cursor < end)
        cursor = is_word(cursor, word_length(cursor), ".local")
                     ? read_variables(&arrays, cursor + word_length(cursor), false)
                     : cursor + word_length(cursor);
    for (unsigned i = 0; i < arrays.global_count; i++)
        free(arrays.globals[i].name);
    free(arrays.globals);
    return arrays.global_bytes;
}

/* Bytes of its parameters: arrays have their declared size, others eight bytes each. */
uint64_t image_parameters(const struct module *module, const char *name)
{
    const char *cursor = module->ptx ? entry(module->ptx, name) : NULL;
    uint64_t bytes = 0;
    for (const char *list_end = cursor ? cursor + strcspn(cursor, ")") : NULL;
         cursor && (cursor = strstr(cursor, ".param")) && cursor < list_end;) {
        const char *size_text = cursor + strcspn(cursor, "[,)");
        bytes += *size_text == '[' ? strtoull(size_text + 1, NULL, 10) : 8;
        cursor = size_text;
    }
    return bytes;
}

bool image_mallocs(const struct module *module, const char *name)
{
    const char *end, *body = body_of(module, name, &end);
    return body && calls(body, end, "malloc");
}
