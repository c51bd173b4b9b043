# shellcheck shell=bash
# A virtual machine with emulated persistent memory, for the tests that reset it. The memory is files of the host, so it survives when
# QEMU is killed: that is the reset of the machine. Sourced; the test has the functions say and fail, calls prepare_machine and
# make_initrd, and from then on boot, await and reset_machine. What happens in the machine is in `guest-job`.
#
# shellcheck disable=SC2034 # used by the tests

# Environment: CARGO_TARGET_DIR, BOOT_TIMEOUT (seconds for what one boot does, default 420: without KVM everything takes its time).

vm_here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$vm_here/../.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
vm_dir=$target/vm
memory_dir=$vm_dir # a test may choose another one before prepare_machine
boot_timeout=${BOOT_TIMEOUT:-420}
dax_size=256M   # the memory for /dev/dax*
fsdax_size=320M # the memory for the file system

skip() { say "skipped: $*"; exit 77; }

# ---- what is needed -------------------------------------------------------------------------------------------------

[ "$(uname -m)" = x86_64 ] || skip "the machine is for x86-64, this is $(uname -m)"

packages() {
    local missing=() tool package
    while read -r tool package; do
        command -v "$tool" >/dev/null || missing+=("$package")
    done <<'TOOLS'
qemu-system-x86_64 qemu-system-x86
busybox busybox-static
ndctl ndctl
cpio cpio
modprobe kmod
xz xz-utils
mkfs.ext4 e2fsprogs
TOOLS
    [ ${#missing[@]} = 0 ] && return
    command -v apt-get >/dev/null || skip "not installed: ${missing[*]} (and this is no Debian)"
    [ "$(id -u)" = 0 ] || skip "not installed: ${missing[*]} (only root can: apt-get install ${missing[*]})"
    say "installing ${missing[*]}"
    local log=$vm_dir/apt.log
    { timeout 300 apt-get update -qq &&
        DEBIAN_FRONTEND=noninteractive timeout 900 apt-get install -y -qq --no-install-recommends "${missing[@]}"
    } >"$log" 2>&1 || skip "cannot install ${missing[*]}: $(tail -1 "$log")"
}

# Debian's kernel, unpacked and not installed. Sets kernel_dir and kernel (its version).
fetch_kernel() {
    kernel_dir=$vm_dir/kernel
    if ! ls "$kernel_dir"/boot/vmlinuz-* >/dev/null 2>&1; then
        command -v apt-get >/dev/null || skip "no Debian here to get a kernel from"
        local deb=$vm_dir/deb package
        rm -rf "$deb" "$kernel_dir"; mkdir -p "$deb"
        if [ "$(id -u)" = 0 ] && ! apt-cache show linux-image-amd64 >/dev/null 2>&1; then
            timeout 300 apt-get update -qq >/dev/null 2>&1 || true
        fi
        package=$(apt-cache depends linux-image-amd64 2>/dev/null | awk '$1 == "Depends:" { print $2; exit }')
        [ -n "$package" ] || skip "apt knows no linux-image-amd64"
        say "fetching $package"
        (cd "$deb" && timeout 600 apt-get -o APT::Sandbox::User=root download -qq "$package") >"$vm_dir/apt.log" 2>&1 ||
            skip "cannot download $package: $(tail -1 "$vm_dir/apt.log")"
        dpkg-deb -x "$deb"/*.deb "$kernel_dir.new"
        rm -rf "$deb"
        depmod -b "$kernel_dir.new" "$(ls "$kernel_dir.new/lib/modules")"
        mv "$kernel_dir.new" "$kernel_dir"
    fi
    kernel=$(ls "$kernel_dir/lib/modules")
    # The plain ELF image boots at once; the compressed one would be unpacked by the emulated CPU.
    local image=$kernel_dir/boot/vmlinuz-$kernel at
    if [ ! -e "$vm_dir/vmlinux" ]; then
        at=$(LC_ALL=C grep -aboP -m1 '\xfd7zXZ\x00' "$image" | head -1 | cut -d: -f1) || true
        # tail does not get rid of what lies behind the stream, so its status says nothing
        [ -z "$at" ] || { tail -c +$((at + 1)) "$image" | xz -dc --single-stream >"$vm_dir/vmlinux.new"; } 2>/dev/null || true
        if [ -e "$vm_dir/vmlinux.new" ] && [ "$(head -c 4 "$vm_dir/vmlinux.new")" = $'\x7fELF' ]; then
            mv "$vm_dir/vmlinux.new" "$vm_dir/vmlinux"
        else
            cp "$image" "$vm_dir/vmlinux"
        fi
    fi
}

# prepare_machine: what is needed is there, the memory is blank, and nobody else uses either.
prepare_machine() {
    mkdir -p "$vm_dir"
    exec 9>"$vm_dir/lock"
    flock -n 9 || fail "another run uses $vm_dir"
    packages
    fetch_kernel
    rm -f "$vm_dir"/console-*.log "$memory_dir"/*.pmem
    truncate -s $fsdax_size "$memory_dir/fsdax.pmem"
    truncate -s $dax_size "$memory_dir/dax.pmem"
}

# Copies programs to /bin of the guest's tree, and the libraries they need to where they are here.
into_guest() {
    local program library
    for program; do
        cp -L "$program" "$tree/bin"
        for library in $(ldd "$program" 2>/dev/null | grep -o '/[^ ]*'); do
            [ -e "$tree$library" ] || cp -L --parents "$library" "$tree"
        done
    done
}

# make_initrd PROGRAM...: what the machine boots from, with these programs in it.
make_initrd() {
    local tree n=100 module line file name
    tree=$(mktemp -d "$vm_dir/tree.XXXXXX")
    mkdir -p "$tree"/{bin,sbin,modules,proc,sys,dev,run,tmp,etc,mnt/dax,mnt/polvo,mnt/ext}
    cp "$(command -v busybox)" "$tree/bin/busybox"
    install -m 755 "$vm_here/guest-init" "$tree/init"
    install -m 755 "$vm_here/guest-job" "$tree/job"
    echo 'root:x:0:0:root:/:/bin/sh' >"$tree/etc/passwd"
    : >"$tree/etc/mtab"
    into_guest "$(command -v ndctl)" "$(command -v mkfs.ext4)" "$@"
    ln -s polvo "$tree/bin/polvod"
    strip --strip-debug "$tree"/bin/p* 2>/dev/null || true
    # Numbered in the order in which they have to be loaded.
    for module in crc32c_generic nfit nd_pmem dax_pmem device_dax ext4 fuse virtio_pci virtio_net; do
        while read -r line; do
            case $line in insmod\ *) ;; *) continue ;; esac
            file=$(echo "$line" | awk '{ print $2 }')
            name=$(basename "$file")
            compgen -G "$tree/modules/*-${name%.xz}" >/dev/null && continue
            case $file in
            *.xz) xz -dc "$file" >"$tree/modules/$n-${name%.xz}" ;;
            *) cp "$file" "$tree/modules/$n-$name" ;;
            esac
            n=$((n + 1))
        done < <(modprobe -C /dev/null -d "$kernel_dir" -S "$kernel" --show-depends "$module")
    done
    (cd "$tree" && find . | cpio -o -H newc --quiet) >"$vm_dir/initrd"
    rm -rf "$tree"
}

# ---- the machine ----------------------------------------------------------------------------------------------------

qemu=
stop_qemu() {
    if [ -n "$qemu" ]; then
        kill -9 "$qemu" 2>/dev/null || true
        wait "$qemu" 2>/dev/null || true
        qemu=
    fi
}

boots=0
network=()   # arguments of QEMU: the machine's network card, if it has one
in_network=() # what runs a command in the network that the card is in
domain=mem-ctrl # what the firmware says is safe when the power goes: the memory controller, or also the CPU's caches
# boot PHASE [key=value...]: starts the machine; its console goes to $console.
boot() {
    local phase=$1
    shift
    boots=$((boots + 1))
    console=$vm_dir/console-$boots-$phase.log
    : >"$console"
    say "boot $boots: $phase $*"
    local acceleration=(-accel "tcg,thread=multi")
    [ -r /dev/kvm ] && [ -w /dev/kvm ] && grep -qE '^flags.* (vmx|svm)' /proc/cpuinfo && acceleration=(-accel kvm)
    # Ends with this script, however that ends.
    "${in_network[@]}" setpriv --pdeathsig KILL qemu-system-x86_64 "${acceleration[@]}" \
        -machine q35,nvdimm=on,nvdimm-persistence=$domain -cpu max,la57=off -smp 2 -m 1536M,slots=4,maxmem=4G \
        -object "memory-backend-file,id=fsdax,share=on,mem-path=$memory_dir/fsdax.pmem,size=$fsdax_size" \
        -device nvdimm,id=nv0,memdev=fsdax \
        -object "memory-backend-file,id=dax,share=on,mem-path=$memory_dir/dax.pmem,size=$dax_size" \
        -device nvdimm,id=nv1,memdev=dax \
        -nodefaults -no-user-config -vga none -display none -serial stdio -no-reboot "${network[@]}" \
        -kernel "$vm_dir/vmlinux" -initrd "$vm_dir/initrd" \
        -append "console=ttyS0 quiet panic=-1 mitigations=off no_timer_check polvo.phase=$phase $*" \
        </dev/null >"$console" 2>&1 9>&- &
    qemu=$!
}

# The number after the last `VM: KEY ` on the console, or 0.
last() { { tr -d '\r' <"$console" | grep -ao "^VM: $1 [0-9]*\$" || true; } | tail -1 | awk '{ n = $3 } END { print n + 0 }'; }
said() { grep -aq "^VM: $1" "$console"; }

show_console() { tr -d '\r' <"$console" | grep -av '^VM: ack ' | tail -40 | sed 's/^/    | /'; }

# await COMMAND...: until it succeeds; fails when the machine ends or takes too long.
await() {
    local deadline=$((SECONDS + boot_timeout))
    until "$@"; do
        said failed && { show_console; fail "in the machine: $(tr -d '\r' <"$console" | grep -a '^VM: failed' | head -1)"; }
        kill -0 "$qemu" 2>/dev/null || { "$@" && return; show_console; fail "the machine ended before: $*"; }
        [ $SECONDS -lt $deadline ] || { show_console; fail "not within $boot_timeout s: $*"; }
        sleep 0.2
    done
}

# The power is cut: nothing in the machine gets to do anything any more.
reset_machine() { stop_qemu; }

# The job is done and the machine has switched itself off.
await_end() {
    await said "done"
    local deadline=$((SECONDS + 30))
    while kill -0 "$qemu" 2>/dev/null && [ $SECONDS -lt $deadline ]; do sleep 0.2; done
    stop_qemu
}

