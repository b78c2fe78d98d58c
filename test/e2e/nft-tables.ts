import type { Host } from '../lab/lab.ts';

/**
 * The content of the agent's tables of both families, sorted: nft prints elements in hash order, which differs between
 * tables. Affinity entries, which packets write, are left out.
 */
export async function portwideTables(host: Host): Promise<string[]> {
  const texts = await Promise.all(
    ['ip', 'ip6'].map((ip) => host.exec('nft', ['list', 'table', ip, 'portwide'])),
  );
  return texts
    .flatMap(({ stdout }) => stdout.split('\n'))
    .flatMap((line) => line.split(/[,{}]/))
    .map((line) => line.trim())
    .filter((line) => !/^(elements =|.* expires .*)?$/.test(line))
    .sort();
}
