/* See kernel_modules.h. Invariant: a module is given to the kernel once, and after everything that it depends on. */
#include "kernel_modules.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "util.h"

enum { MODULES_MAX = 128, ALIASES_MAX = 512, NEEDS_MAX = 16 };

struct module {
    char *name;
    char *needs[NEEDS_MAX];
    bool tried;
    bool always;
};

struct alias {
    char *pattern;
    struct module *module;
};

static struct module modules[MODULES_MAX];
static struct alias aliases[ALIASES_MAX];
static size_t module_count, alias_count;

static struct module *find(const char *name)
{
    for (size_t i = 0; i < module_count; i++)
        if (strcmp(modules[i].name, name) == 0)
            return &modules[i];
    guest_fail("find in the image the module", name, ENOENT);
}

static void add_module(char *words)
{
    struct module *module = &modules[module_count];
    char *need;

    if (module_count == MODULES_MAX)
        guest_fail("take as many modules as", words, E2BIG);
    module_count++;
    module->name = strsep(&words, " ");
    for (size_t i = 0; (need = strsep(&words, " ")); i++) {
        if (i == NEEDS_MAX - 1)
            guest_fail("take as many dependencies as those of", module->name, E2BIG);
        module->needs[i] = need;
    }
}

static void add_alias(char *words)
{
    char *pattern = strsep(&words, " ");

    if (!words || alias_count == ALIASES_MAX)
        guest_fail("take the alias", pattern, words ? E2BIG : EINVAL);
    aliases[alias_count++] = (struct alias){pattern, find(words)};
}

void kernel_modules_read(const char *path)
{
    char *text = guest_read(path), *line; /* never freed: the names stay in it */

    if (!text)
        guest_fail("read", path, errno);
    while ((line = strsep(&text, "\n"))) {
        char *kind = strsep(&line, " ");

        if (!line)
            continue;
        if (strcmp(kind, "module") == 0)
            add_module(line);
        else if (strcmp(kind, "always") == 0)
            find(line)->always = true;
        else if (strcmp(kind, "alias") == 0)
            add_alias(line);
    }
}

static const char *directory = "/modules";

static void load(struct module *module)
{
    char path[160];
    int fd;

    if (module->tried)
        return;
    module->tried = true;
    for (char **need = module->needs; *need; need++)
        load(find(*need));
    snprintf(path, sizeof path, "%.40s/%.100s.ko", directory, module->name);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || (syscall(SYS_finit_module, fd, "", 0) < 0 && errno != EEXIST))
        fprintf(stderr, "wherry-guest: cannot load %s: %s\n", path, strerror(errno));
    if (fd >= 0)
        close(fd);
    unlink(path); /* the RAM disk is memory */
}

/* Loads the modules that one device asks for. Returns true when something new was loaded. */
static bool serve_device(const char *modalias)
{
    bool news = false;

    for (size_t i = 0; i < alias_count; i++)
        if (!aliases[i].module->tried && fnmatch(aliases[i].pattern, modalias, 0) == 0) {
            load(aliases[i].module);
            news = true;
        }
    return news;
}

static bool serve_bus(const char *bus)
{
    char path[512];
    struct dirent *entry;
    bool news = false;
    DIR *devices;

    snprintf(path, sizeof path, "/sys/bus/%s/devices", bus);
    devices = opendir(path);
    while (devices && (entry = readdir(devices))) {
        char *modalias;

        snprintf(path, sizeof path, "/sys/bus/%s/devices/%s/modalias", bus, entry->d_name);
        modalias = guest_read(path);
        if (modalias) {
            modalias[strcspn(modalias, "\n")] = 0;
            news |= serve_device(modalias);
        }
        free(modalias);
    }
    if (devices)
        closedir(devices);
    return news;
}

void kernel_modules_load_for_devices(void)
{
    static const char *const buses[] = {"pci", "acpi", "xen", "virtio"};
    bool news;

    for (size_t i = 0; i < module_count; i++)
        if (modules[i].always)
            load(&modules[i]);
    do {
        news = false;
        for (size_t i = 0; i < sizeof buses / sizeof *buses; i++)
            news |= serve_bus(buses[i]);
    } while (news);
}

void kernel_modules_load(const char *from, const char *name)
{
    directory = from;
    load(find(name));
}
