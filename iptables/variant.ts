import { readFile } from 'node:fs/promises';
import { ExecaError } from 'execa';
import { runProgram } from '../process/run-program.ts';
import { hasKubelet } from '../takeover/iptables-rules.ts';
import { SERVICES } from './chains.ts';
import { IPTABLES_TIMEOUTS, type Variant } from './commands.ts';

/** What the two variants hold now, as `iptables-save` text; undefined: unused or not installed. */
export interface VariantFacts {
  readonly nft: string | undefined;
  readonly legacy: string | undefined;
}

/**
 * The variant that the node uses, by the rules of iptables-wrapper: the kubelet's mark in table
 * mangle decides, then the greater number of rules. Rules in both would be ghosts to each other.
 */
export function chooseVariant(mangle: VariantFacts, all: VariantFacts): Variant {
  if (hasKubelet(mangle.nft ?? '')) return 'nft';
  if (hasKubelet(mangle.legacy ?? '')) return 'legacy';
  return countRules(all.legacy) > countRules(all.nft) ? 'legacy' : 'nft';
}

/** Looks at both families of the node and chooses. @throws ProgramTimeoutError */
export async function detectVariant(): Promise<Variant> {
  const mangle = { nft: await saved('nft', 'mangle'), legacy: await saved('legacy', 'mangle') };
  const all = { nft: await saved('nft', 'nat'), legacy: await saved('legacy', 'nat') };
  return chooseVariant(mangle, all);
}

/**
 * Whether there are rules for Services in this variant, of kube-proxy or Portwide.
 * @throws ProgramTimeoutError
 */
export async function holdsServices(variant: Variant): Promise<boolean> {
  return (await saved(variant, 'nat'))?.includes(`\n:${SERVICES} `) ?? false;
}

async function saved(variant: Variant, table: string): Promise<string | undefined> {
  const families = [
    ['iptables', '/proc/net/ip_tables_names'],
    ['ip6tables', '/proc/net/ip6_tables_names'],
  ] as const;
  const texts: string[] = [];
  for (const [command, names] of families) {
    // iptables-legacy-save creates the table that it is asked for, and loads its module.
    if (variant === 'legacy' && !(await lists(names, table))) continue;
    const name = `${command}-${variant}-save`;
    const limits = { timeout: IPTABLES_TIMEOUTS.read, maxBuffer: 256 * 1024 * 1024 };
    // Not installed, or of no use on this node. One that hangs tells nothing of the kind.
    const text = await runProgram(name, ['-t', table], limits).catch((error: unknown) => {
      if (error instanceof ExecaError) return undefined;
      throw error;
    });
    if (text !== undefined) texts.push(text);
  }
  return texts.length === 0 ? undefined : texts.join('\n');
}

async function lists(file: string, table: string): Promise<boolean> {
  try {
    return (await readFile(file, 'utf8')).split('\n').includes(table);
  } catch {
    // No such file: the kernel has no iptables-legacy of this family.
    return false;
  }
}

function countRules(text: string | undefined): number {
  return text?.match(/^-A /gm)?.length ?? 0;
}
