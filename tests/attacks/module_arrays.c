/* Arrays that modules declare, in the ways in which they can be written and loaded. */
#include "fat_image.h"
#include "memory.h"

#include <elf.h>

#define PTX_HEAD     ".version 6.4\n.target sm_50\n.address_size 64\n"
#define DECLARING(x) PTX_HEAD x "\n.visible .entry touch() { ret; }\n"

/* 8 MiB each, as often as these go into four times the limit. */
static const char *const spellings[] = {
    DECLARING(".visible .global .align 4 .b8 a[8388608];"),
    DECLARING(".visible .global .b8 a[0x800000];"),
    DECLARING(".visible .global .b8 a[040000000];"),
    DECLARING(".visible .global .b8 a[0b100000000000000000000000];"),
    DECLARING(".visible .global .b8 a[8192*1024];"),
    DECLARING(".visible .global .b8 a[1<<23];"),
    DECLARING(".visible .global .b8 a[(4096+4096)*1024];"),
    DECLARING(".visible .global .b8 a[4194304], b[4194304];"),
    DECLARING(".visible .global .b8 a[2048][4096];"),
    DECLARING(".visible .global .v4 .b32 a[524288];"),
    DECLARING(".visible .global .u64 a[1048576];"),
    DECLARING(".visible\n.global/* ; */.b8\n// ]\na [ 8388608 ] ;"),
    DECLARING(".visible .global .b8 a[8388608] = {1};"),
    DECLARING(".common .global .b8 a[8388608];"),
};
#define SPELLINGS (sizeof spellings / sizeof *spellings)

PART(spelled, "every spelling of PTX")
{
    void *module;
    open_card();
    for (unsigned i = 0; i < SPELLINGS; i++)
        for (unsigned j = 0; j < 4; j++)
            cu.load(&module, spellings[i]);
}

/* Where libraries are loaded lazily, their arrays come with the first use. */
PART(libraries, "libraries")
{
    CUlibrary library;
    CUdeviceptr address;
    size_t bytes;
    open_card();
    for (unsigned i = 0; i < times(8 * MIB); i++)
        if (CU(cuLibraryLoadData)(&library, spellings[i % SPELLINGS], NULL, NULL, 0, NULL, NULL, 0) == CUDA_SUCCESS)
            CU(cuLibraryGetGlobal)(&address, &bytes, library, "a");
}

PART(libraries_launched, "libraries whose kernels are used")
{
    CUlibrary library;
    CUkernel kernel;
    CUfunction function;
    open_card();
    for (unsigned i = 0; i < times(8 * MIB); i++) {
        if (CU(cuLibraryLoadData)(&library, spellings[i % SPELLINGS], NULL, NULL, 0, NULL, NULL, 0) != CUDA_SUCCESS ||
            CU(cuLibraryGetKernel)(&kernel, library, "touch") != CUDA_SUCCESS)
            continue;
        if (i % 2 == 0)
            CU(cuKernelGetFunction)(&function, kernel);
        else /* a kernel may be launched as it is */
            CU(cuLaunchKernel)((CUfunction)kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
    }
}

PART(files, "files")
{
    char path[] = "/tmp/hetero-attack-XXXXXX";
    CUmodule module;
    CUlibrary library;
    CUfunction function;
    open_card();
    int file = mkstemp(path);
    must(file < 0 || write(file, spellings[4], strlen(spellings[4])) < 0, "a file");
    for (unsigned i = 0; i < times(8 * MIB); i++)
        if (i % 2 == 0)
            CU(cuModuleLoad)(&module, path);
        else if (CU(cuLibraryLoadFromFile)(&library, path, NULL, NULL, 0, NULL, NULL, 0) == CUDA_SUCCESS)
            if (CU(cuLibraryGetModule)(&module, library) == CUDA_SUCCESS)
                CU(cuModuleGetFunction)(&function, module, "touch");
    unlink(path);
}

/* What the linker makes is ELF, which is not looked at as PTX is. */
PART(linked, "linked images")
{
    CUresult (*create)(unsigned, CUjit_option *, void **, void **) = driver_function("cuLinkCreate_v2");
    CUresult (*add)(void *, int, const void *, size_t, const char *, unsigned, CUjit_option *,
                    void **) = driver_function("cuLinkAddData_v2");
    CUresult (*complete)(void *, void **, size_t *) = driver_function("cuLinkComplete");
    void *state, *image, *module;
    size_t size;
    const int ptx = 1;
    open_card();
    if (create(0, NULL, NULL, &state) != CUDA_SUCCESS ||
        add(state, ptx, spellings[0], strlen(spellings[0]) + 1, "a", 0, NULL, NULL) != CUDA_SUCCESS ||
        complete(state, &image, &size) != CUDA_SUCCESS)
        return;
    for (unsigned i = 0; i < times(8 * MIB); i++)
        cu.load(&module, image);
}

/* An ELF file with two arrays of a byte that lie so far apart. `read`: the limiter can read it; else it is like a fat
 * binary, of which the driver's figure alone tells. */
static char image[2048];
static const void *elf_of(uint64_t apart, bool read)
{
    Elf64_Ehdr *head = (Elf64_Ehdr *)image;
    Elf64_Shdr *sections = (Elf64_Shdr *)(image + 1024),
               array = {.sh_size = 1, .sh_addralign = apart, .sh_type = SHT_NOBITS, .sh_flags = SHF_ALLOC};
    *head = (Elf64_Ehdr){.e_ident = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64},
                         .e_shoff = 1024,
                         .e_shentsize = read ? sizeof *sections : 0,
                         .e_shnum = 4,
                         .e_shstrndx = 3};
    memcpy(image + 512, "\0.nv.global", 12);
    sections[3] = (Elf64_Shdr){.sh_offset = 512, .sh_size = 12};
    sections[1] = sections[2] = array;
    sections[1].sh_name = sections[2].sh_name = 1;
    return image;
}

PART(far_apart, "arrays far apart")
{
    void *module;
    open_card();
    for (unsigned i = 0; i < times(16 * MIB); i++)
        cu.load(&module, elf_of(16 * MIB, true));
}

/* Code is not charged, so what says that it has much of it could have arrays in its place. */
PART(after_refused, "after images that are refused")
{
    static Elf64_Ehdr end_far_off = {.e_ident = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64},
                                     .e_shoff = 1ull << 40};
    static char refused[MIB];
    void *module;
    open_card();
    memset(refused, 'x', sizeof refused - 1);
    for (unsigned i = 0; i < 100; i++)
        cu.load(&module, i % 2 == 0 ? (const void *)&end_far_off : refused);
    cu.load(&module, elf_of(320 * MIB, false));
}

PART(after_comments, "after an image of comments")
{
    static char text[4 * MIB]; /* a card's compiler had not read 64 in 12 s */
    void *module;
    open_card();
    memset(text, ' ', sizeof text - 1);
    strcpy(text + sizeof text - 256, DECLARING("// it has no code"));
    memcpy(text, "//", 2);
    text[2 * MIB] = '\n';
    cu.load(&module, text);
    cu.load(&module, elf_of(320 * MIB, false));
}

/* ---------------------------------------------------------------------------------------------------- fat binaries */

static struct fatbin_wrapper wrapped = {FATBIN_WRAPPER_MAGIC, 1, &fat, NULL};

static void add_entry(unsigned kind, unsigned flags, const void *from, size_t size)
{
    int major = 5, minor = 0;
    if (kind == FATBIN_ELF) {
        CU(cuDeviceGetAttribute)(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0);
        CU(cuDeviceGetAttribute)(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0);
    }
    fat_add(kind, (unsigned)(major * 10 + minor), flags, from, size);
}

/* With an array of 8 MiB. */
static void make_fat(unsigned kind, unsigned flags)
{
    fat.head.entries_bytes = 0;
    if (kind == FATBIN_ELF)
        add_entry(kind, flags, elf_of(8 * MIB - 1, true), sizeof image);
    else
        add_entry(kind, flags, spellings[0], strlen(spellings[0]) + 1);
}

static void load_fat(void)
{
    CUmodule module;
    for (unsigned i = 0; i < times(8 * MIB); i++)
        if (i % 2 == 0)
            cu.load((void **)&module, &fat);
        else
            CU(cuModuleLoadFatBinary)(&module, &wrapped);
}

/* Its library is loaded by a launch of its kernel, as it is. */
static void launch_fat(unsigned count)
{
    CUlibrary library;
    CUkernel kernel;
    for (unsigned i = 0; i < count; i++)
        if (CU(cuLibraryLoadData)(&library, &wrapped, NULL, NULL, 0, NULL, NULL, 0) == CUDA_SUCCESS &&
            CU(cuLibraryGetKernel)(&kernel, library, "touch") == CUDA_SUCCESS)
            CU(cuLaunchKernel)((CUfunction)kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
}

#define FAT(name, what, kind, flags)                                                                                   \
    PART(name, "fat binaries" what)                                                                                    \
    {                                                                                                                  \
        open_card();                                                                                                   \
        make_fat(kind, flags);                                                                                         \
        load_fat();                                                                                                    \
    }                                                                                                                  \
    PART(name##_launched, "launches of fat libraries" what)                                                            \
    {                                                                                                                  \
        open_card();                                                                                                   \
        make_fat(kind, flags);                                                                                         \
        launch_fat(times(8 * MIB));                                                                                    \
    }
FAT(fat_ptx, " of PTX", FATBIN_PTX, 0)
FAT(fat_elf, " of ELF", FATBIN_ELF, 0)
FAT(fat_lz4, ", by LZ4", FATBIN_PTX, FATBIN_LZ4)
FAT(fat_zstd, ", by zstd", FATBIN_PTX, FATBIN_ZSTD)

/* The first image is for no card, and has nothing. */
PART(fat_of_several, "fat binaries of several images")
{
    static const char nothing[] = DECLARING("");
    open_card();
    make_fat(FATBIN_PTX, FATBIN_LZ4);
    add_entry(FATBIN_PTX, 0, nothing, sizeof nothing);
    load_fat();
}

/* Arrays of less than a block each. */
PART(small_launched, "launches of libraries of small arrays")
{
    static const char small[] = DECLARING(".visible .global .b8 a[1048575];");
    open_card();
    fat.head.entries_bytes = 0;
    add_entry(FATBIN_PTX, 0, small, sizeof small);
    launch_fat(times(MIB));
}

/* A library that has much code, which is never used: room for arrays that cannot be read. */
PART(beside_code, "fat binaries beside code that is not used")
{
    static char text[3 * MIB];
    CUlibrary library;
    open_card();
    for (size_t at = 0; at < sizeof text - 1; at++)
        text[at] = "add.u32 r,r,r;\n"[at % 15];
    memcpy(text, PTX_HEAD ".entry much(){", sizeof PTX_HEAD ".entry much(){" - 1);
    strcpy(text + sizeof text - 16, "call f;}");
    for (unsigned i = 0; i < 24; i++)
        CU(cuLibraryLoadData)(&library, text, NULL, NULL, 0, NULL, NULL, 0);
    make_fat(FATBIN_PTX, FATBIN_ZSTD);
    load_fat();
    launch_fat(times(8 * MIB));
}

int main(void)
{
    run_parts();
}
