/** Command lines that boot a kernel: user-mode-linux, or a stock Debian kernel in QEMU. */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { CACHE, nftOfVersion } from '../nft-versions.ts';

const ROOT = new URL('../..', import.meta.url).pathname;
const QEMU = new URL('./qemu.sh', import.meta.url).pathname;
export const MEMORY_GIB = 2;

/** Version of the stock kernel that the specs run in; undefined: user-mode-linux. */
export const STOCK_KERNEL = process.env.PORTWIDE_KERNEL || undefined;
/** Version of nft in a stock kernel. Default: the version in the container image. */
const NFT = process.env.PORTWIDE_NFT || '1.0.6';
/**
 * Proxy modes of tests that need nf_tables. Only a stock kernel has both IPVS and nf_tables; there, only mode ipvs is
 * tested, because the machine's own kernel tests the others in less time.
 */
export const MODES: readonly ('nftables' | 'iptables' | 'ipvs')[] =
  STOCK_KERNEL === undefined ? ['nftables', 'iptables'] : ['ipvs'];

export interface Start {
  /** The kernel's directory. */
  readonly directory: string;
  /** Path of init.sh or another first process. */
  readonly init: string;
  readonly command: readonly string[];
}

/** The command that boots the kernel of this run. */
export function kernelCommand(start: Start): string[] {
  return STOCK_KERNEL === undefined ? umlCommand(start) : qemuCommand(start, STOCK_KERNEL);
}

function umlCommand({ directory, init, command }: Start): string[] {
  return [
    'linux.uml',
    `mem=${MEMORY_GIB}G`,
    ...['root=/dev/root', 'rootfstype=hostfs', 'rootflags=/', 'ro'],
    ...['con=null', 'con0=fd:0,fd:1', 'console=tty0', 'quiet'],
    // init.sh ends the kernel by a reset; a panic does so too.
    ...['noreboot', 'panic=-1'],
    // Directory of the kernel's pid file and socket.
    `uml_dir=${directory}`,
    `init=${quoted(init)}`,
    `UML_ROOT=${quoted(ROOT)}`,
    // Synchronous, so that output is visible outside at once, even if the kernel is killed right after.
    `UML_MOUNT=${quoted(`-t hostfs -o sync,${directory} none`)}`,
    '--',
    ...command.map(quoted),
  ];
}

/** @throws Error if scripts/kernels.sh has not downloaded the kernel */
function qemuCommand({ directory, init, command }: Start, version: string): string[] {
  const kernel = join(CACHE, version);
  if (!existsSync(kernel)) throw new Error(`there is no kernel ${kernel}: run scripts/kernels.sh`);
  const hasKvm = ['intel', 'amd'].some((maker) => existsSync(`/sys/module/kvm_${maker}`));
  const share = (name: string) => [
    ...['-chardev', `socket,id=${name},path=${join(directory, `${name}.socket`)}`],
    ...['-device', `vhost-user-fs-pci,chardev=${name},tag=${name},queue-size=1024`],
  ];
  const line = [
    ...['console=ttyS0', 'quiet', 'mitigations=off'],
    // A reset ends QEMU, and a panic resets.
    'panic=-1',
    // Emulated, the HPET is slow to read; all virtual CPUs have the host's time-stamp counter.
    'tsc=reliable',
    `MODULES=${quoted(join(kernel, 'modules'))}`,
    `NFT=${quoted(nftOfVersion(NFT))}`,
    `UML_INIT=${quoted(init)}`,
    `UML_ROOT=${quoted(ROOT)}`,
    `UML_MOUNT="-t virtiofs host"`,
    '--',
    ...command.map(quoted),
  ].join(' ');
  if (line.length > 2047) throw new RangeError(`a kernel's command line is too long: ${line}`);
  return [
    ...[QEMU, directory],
    ...['-machine', 'q35', '-nodefaults', '-display', 'none', '-no-reboot', '-serial', 'stdio'],
    ...(hasKvm ? ['-accel', 'kvm', '-cpu', 'host'] : ['-accel', 'tcg,thread=multi,tb-size=1024']),
    ...(hasKvm ? [] : ['-cpu', 'max']),
    ...['-smp', '2', '-m', `${MEMORY_GIB}G`, '-numa', 'node,memdev=memory'],
    ...['-object', `memory-backend-memfd,id=memory,size=${MEMORY_GIB}G,share=on`],
    ...share('root'),
    ...share('host'),
    ...['-kernel', join(kernel, 'vmlinuz'), '-initrd', join(kernel, 'initrd'), '-append', line],
  ];
}

/** A word of the kernel's command line, which supports quotes but no escapes. */
function quoted(word: string): string {
  if (word.includes('"')) throw new Error(`a kernel argument must not contain a quote: ${word}`);
  return `"${word}"`;
}
