"""Node kind `vm`: QEMU under libvirt, one libvirtd per emulated host."""
