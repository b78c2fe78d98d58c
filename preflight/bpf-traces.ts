/** BPF programs of other programs on the node, which handle packets before any rule. Pure. */
import type { BpfProgram } from '../netlink/route/bpf-programs.ts';
import { type CheckResult, ok, warn } from './result.ts';

/** Names of tc filters: `cil_from_netdev-eth0`, and `bpf_host.o:[from-netdev]` of Cilium before 1.12. */
export const CILIUM_PROGRAM = /^cil_|^bpf_(host|lxc|netdev|network|overlay)\.o:/;
/** `cali_tc_preamble`, and `from_hep_debug.o:[calico_from_host_ep]` of older releases. */
export const CALICO_PROGRAM = /^cali|\[calico_/;

/** The last parts of paths. */
export function pinNames(paths: readonly string[]): string[] {
  return paths.map((path) => path.slice(path.lastIndexOf('/') + 1));
}

/** Programs with such a name, for people. */
export function programTexts(programs: readonly BpfProgram[], name: RegExp): string[] {
  return programs.filter((program) => name.test(program.name)).map(programText);
}

function programText({ interfaceName, hook, name }: BpfProgram): string {
  const what = hook === 'xdp' ? 'XDP' : name === '' ? 'without a name' : name;
  return `${what} on ${interfaceName}${hook === 'xdp' ? '' : ` (${hook})`}`;
}

/** Programs on interfaces that are neither Cilium's nor Calico's. */
export function bpfPrograms(programs: readonly BpfProgram[]): CheckResult {
  const others = programs.filter(
    ({ name }) => !CILIUM_PROGRAM.test(name) && !CALICO_PROGRAM.test(name),
  );
  if (others.length === 0) return ok('BPF programs', 'none of other programs on interfaces');
  const more = others.length > 3 ? ` and ${others.length - 3} more` : '';
  return warn(
    'BPF programs',
    `${others.slice(0, 3).map(programText).join(', ')}${more}`,
    'they handle packets before any rule: see `bpftool net`, and check that they leave Services alone',
  );
}
