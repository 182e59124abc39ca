/*
 * The kernel's modules that the image brings, and which of them this machine needs.
 *
 * The list is written when the image is made, from the modules' own data (modinfo), one word list a line:
 *
 *   module NAME DEPENDENCY…      the file is /modules/NAME.ko; its dependencies are modules of the list too
 *   always NAME                  loaded on every machine
 *   alias PATTERN NAME           loaded when a device's modalias matches the pattern (fnmatch)
 *
 *   pci bus:  pci:v00001AF4d00001041…  --alias-->  virtio_pci  --depends-->  virtio_ring, virtio
 *                                                       |
 *   virtio bus: virtio:d00000001v00001AF4  <---makes----+      (so the buses are looked at until nothing new comes)
 */
#ifndef WHERRY_GUEST_KERNEL_MODULES_H
#define WHERRY_GUEST_KERNEL_MODULES_H

/* Reads the list. Ends the machine when it cannot be read or is no such list. */
void kernel_modules_read(const char *path);
/*
 * Loads modules that every machine needs or the devices ask for; a module that the kernel refuses is reported and
 * skipped.
 */
void kernel_modules_load_for_devices(void);
/* Loads one module of the list from a directory, with its dependencies. */
void kernel_modules_load(const char *from, const char *name);

#endif
