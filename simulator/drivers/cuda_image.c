/* What a module's image says of the memory it needs: the variables of PTX text (".global" and ".const" of the PTX ISA,
 * section 5.4) and of an ELF image (its sections .nv.global and .nv.global.init), and which of the driver's functions
 * its text calls. */
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

static const char *blank(const char *at)
{
    return at + strspn(at, " \t\r\n\f\v");
}

static size_t word(const char *at) /* the length of the name or directive that starts here */
{
    size_t length = strspn(at, ".%");
    while (isalnum((unsigned char)at[length]) || (at[length] && strchr("_$", at[length])))
        length++;
    return length;
}

static bool is(const char *at, size_t length, const char *what)
{
    return length == strlen(what) && !strncmp(at, what, length);
}

static char *without_comments(const char *text)
{
    char *clean = strdup(text), *to = clean;
    for (const char *from = text; *from; from++) {
        if (!strncmp(from, "//", 2))
            from += strcspn(from, "\n") - 1;
        else if (!strncmp(from, "/*", 2) && strstr(from + 2, "*/"))
            from = strstr(from + 2, "*/") + 1;
        else
            *to++ = *from;
    }
    *to = '\0';
    return clean;
}

static uint64_t times(uint64_t one, uint64_t other)
{
    uint64_t product;
    return __builtin_mul_overflow(one, other, &product) ? UINT64_MAX / 2 : product;
}

static uint64_t expression(const char **at, unsigned level);

static uint64_t number(const char **at)
{
    *at = blank(*at);
    uint64_t value;
    if (**at == '(') {
        ++*at;
        value = expression(at, 0);
        *at = blank(*at);
        *at += **at == ')';
        return value;
    }
    bool binary = (*at)[0] == '0' && ((*at)[1] | 0x20) == 'b';
    char *end;
    value = binary ? strtoull(*at + 2, &end, 2) : strtoull(*at, &end, 0);
    *at = end + (*end == 'U');
    return value;
}

/* A constant expression: shifts bind least, then sums, then products. */
static uint64_t expression(const char **at, unsigned level)
{
    static const char *const operators[] = {"<>", "+-", "*/%"};
    if (level == sizeof operators / sizeof *operators)
        return number(at);
    uint64_t left = expression(at, level + 1);
    for (*at = blank(*at); **at && strchr(operators[level], **at); *at = blank(*at)) {
        char sign = **at;
        *at += level ? 1 : 2;
        uint64_t right = expression(at, level + 1);
        switch (sign) {
        case '<': left <<= right & 63; break;
        case '>': left >>= right & 63; break;
        case '+': left += right; break;
        case '-': left -= right; break;
        case '*': left = times(left, right); break;
        default: left = !right ? 0 : sign == '/' ? left / right : left % right;
        }
    }
    return left;
}

/* The elements of the outermost list of an initialiser, which starts here; each stands for `inner` if it is no list. */
static uint64_t listed(const char *at, uint64_t inner)
{
    uint64_t count = 0;
    unsigned depth = 0;
    at = blank(at);
    bool lists = *at == '{' && *blank(at + 1) == '{';
    for (; *at && *at != ';'; at++) {
        if (*at == '{' && ++depth == 1 && *blank(at + 1) != '}')
            count++;
        if (*at == '}' && --depth == 0)
            break;
        count += *at == ',' && depth == 1;
    }
    return lists ? count : (count + inner - 1) / inner;
}

static const char *skip_initialiser(const char *at)
{
    for (unsigned depth = 0; *at && *at != ';' && (depth || *at != ','); at++)
        depth += (*at == '{') - (*at == '}');
    return at;
}

/* The elements that "<count>[n][m] = {...}" after a name stands for; at is moved behind it. */
static uint64_t elements(const char **at)
{
    uint64_t count = 1;
    bool open = false; /* the first dimension is the initialiser's */
    *at = blank(*at);
    if (**at == '<') {
        ++*at;
        count = number(at);
        *at += strcspn(*at, ">") + 1;
    }
    for (*at = blank(*at); **at == '['; *at = blank(*at)) {
        *at = blank(*at + 1);
        open |= **at == ']';
        count = **at == ']' ? count : times(count, expression(at, 0));
        *at += strcspn(*at, "]") + 1;
    }
    if (open)
        count = **at == '=' ? times(count, listed(*at + 1, count)) : 0;
    *at = skip_initialiser(*at);
    return count;
}

struct kind {                         /* of the variables of a declaration */
    uint64_t width, bytes, alignment; /* width: elements of a vector */
};

/* ".v4", ".align 8", ".f16x2": what one directive of a declaration adds. */
static const char *qualify(struct kind *kind, const char *at, size_t length)
{
    const char *end = at + length, *digits = at + strcspn(at, "0123456789");
    if (is(at, length, ".align")) {
        kind->alignment = number(&end);
    } else if (is(at, length, ".attribute")) {
        end += strcspn(end, ")") + 1;
    } else if (digits < end && at[1] == 'v') {
        kind->width = strtoull(digits, NULL, 10);
    } else if (digits < end) {
        char *rest;
        kind->bytes = strtoull(digits, &rest, 10) / 8;
        kind->bytes *= *rest == 'x' ? strtoull(rest + 1, NULL, 10) : 1;
    }
    return end;
}

/* A variable's name, dimensions and initialiser. */
static const char *read_variable(struct module *module, const char *at, const struct kind *kind, bool elsewhere)
{
    const char *name = at;
    size_t length = word(at);
    at += length;
    uint64_t each = kind->width * kind->bytes, size = times(each, elements(&at));
    if (elsewhere)
        return at;
    module->global_bytes = round_up(module->global_bytes, kind->alignment ? kind->alignment : each ? each : 1);
    declare(module, name, length, module->global_bytes, size);
    module->global_bytes += size;
    return at;
}

/* The rest of a declaration, behind its ".global" or ".const". Opaque kinds (.texref) take nothing. */
static const char *read_variables(struct module *module, const char *at, bool elsewhere)
{
    struct kind kind = {.width = 1};
    for (at = blank(at); *at && *at != ';'; at = blank(at)) {
        size_t length = word(at);
        if (*at == '.')
            at = qualify(&kind, at, length);
        else if (length)
            at = read_variable(module, at, &kind, elsewhere);
        else
            at++;
    }
    return at;
}

static void read_ptx(struct module *module)
{
    unsigned depth = 0;     /* in functions and in lists of parameters */
    bool elsewhere = false; /* the statement is ".extern" */
    for (const char *at = module->ptx; *at;) {
        size_t length = word(at);
        if (!depth && *at == '.' && (is(at, length, ".global") || is(at, length, ".const"))) {
            at = read_variables(module, at + length, elsewhere);
            continue;
        }
        elsewhere |= is(at, length, ".extern");
        depth += *at == '{' || *at == '(';
        depth -= depth && (*at == '}' || *at == ')');
        elsewhere &= depth || (*at != ';' && *at != '}');
        at += length ? length : 1;
    }
}

/* Whether a "call" between the two names the function. */
static bool calls(const char *at, const char *end, const char *function)
{
    if (!strstr(at, function)) /* long texts have neither */
        return false;
    for (bool in_call = false; at < end && *at;) {
        size_t length = word(at);
        in_call = is(at, length, "call") || (in_call && *at != ';');
        if (in_call && is(at, length, function))
            return true;
        at += length ? length : 1;
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
    module->prints = calls(module->ptx, module->ptx + strlen(module->ptx), "vprintf");
    module->mallocs = calls(module->ptx, module->ptx + strlen(module->ptx), "malloc");
}

/* The function's name where the text declares it; NULL: it does not. */
static const char *entry(const char *ptx, const char *name)
{
    for (const char *at = ptx; (at = strstr(at, ".entry"));) {
        at = blank(at + strlen(".entry"));
        if (is(at, word(at), name))
            return at;
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

/* What the arrays of a thread in .local take. */
uint64_t image_local(const struct module *module, const char *name)
{
    const char *end, *at = body_of(module, name, &end);
    struct module arrays = {0};
    while (at && (at = strstr(at, ".local")) && at < end)
        at = is(at, word(at), ".local") ? read_variables(&arrays, at + word(at), false) : at + word(at);
    for (unsigned i = 0; i < arrays.global_count; i++)
        free(arrays.globals[i].name);
    free(arrays.globals);
    return arrays.global_bytes;
}

/* What its parameters take: arrays of bytes as they say, others eight bytes each. */
uint64_t image_parameters(const struct module *module, const char *name)
{
    const char *at = module->ptx ? entry(module->ptx, name) : NULL;
    uint64_t bytes = 0;
    for (const char *end = at ? at + strcspn(at, ")") : NULL; at && (at = strstr(at, ".param")) && at < end;) {
        const char *size = at + strcspn(at, "[,)");
        bytes += *size == '[' ? strtoull(size + 1, NULL, 10) : 8;
        at = size;
    }
    return bytes;
}

bool image_mallocs(const struct module *module, const char *name)
{
    const char *end, *body = body_of(module, name, &end);
    return body && calls(body, end, "malloc");
}
