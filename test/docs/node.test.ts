import assert from 'node:assert/strict';
import { globSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { NFT_SET_NAMES } from '../../policy/compile/policy-table.ts';
import { fencedBlocks, ROOT, readPage } from './page.ts';

/** The production sources of some folders. */
function sourcesOf(...folders: readonly string[]): string {
  const files = folders.flatMap((folder) => globSync(`${folder}/**/*.ts`, { cwd: ROOT }));
  return files.map((file) => readFileSync(join(ROOT, file), 'utf8')).join('\n');
}

describe('docs/operate/node.md', () => {
  const page = readPage('docs/operate/node.md');

  it('names only maps and chains of table portwide that exist', () => {
    const [diagram = assert.fail()] = fencedBlocks(page, 'mermaid');
    const commands = [...page.matchAll(/ip portwide ([a-z-]+)/g)].map(([, name = '']) => name);
    const inDiagram = diagram.match(/\b(?:[a-z]+-)+(?:ports|ips|ranges)\b|\bendpoints\b/g) ?? [];
    const names = [...new Set([...commands, ...inDiagram])];
    assert.ok(names.length >= 7, `${names}`);
    const source = sourcesOf('nftables');
    assert.deepEqual(
      names.filter((name) => !new RegExp(`['"\`]${name}['"\`]|\\b${name}:`).test(source)),
      [],
    );
  });

  it('names all chains, maps and sets of ports owned by pods', () => {
    const [, section = ''] = /## Mode nftables\n(.*?)\n## /s.exec(page) ?? assert.fail();
    const name = '(?:[a-z]+-)*(?:owned|owners|udp)(?:-[a-z]+)*';
    const named = [...section.matchAll(new RegExp(`\`(${name})(?:-N)?\``, 'g'))];
    const existing = sourcesOf('nftables').matchAll(new RegExp(`'(${name})-?'`, 'g'));
    const names = (matches: Iterable<RegExpMatchArray>) =>
      [...new Set([...matches].map(([, name]) => name))].toSorted();
    assert.ok(names(named).length >= 20);
    assert.deepEqual(names(named), names(existing));
  });

  it('names only chains, ipsets and sets of iptables and IPVS that exist', () => {
    const names = new Set(page.match(/KUBE-[A-Z0-9-]*[A-Z0-9]/g) ?? []);
    const source = sourcesOf('iptables', 'ipvs');
    assert.deepEqual(
      [...names].filter((name) => !source.includes(name) && !source.includes(name.slice(5))),
      [],
    );
  });

  it('names only sets and maps of table portwide-policy that exist', () => {
    const [, table = ''] = /## Network policy\n(.*?)\n## /s.exec(page) ?? assert.fail();
    const cells = [...table.matchAll(/^\| (`[^|]+) \|/gm)].map(([, cell = '']) => cell);
    const names = cells.flatMap((cell) => [...cell.matchAll(/`([a-z-]+)/g)]);
    const existing: ReadonlySet<string> = new Set(NFT_SET_NAMES);
    // Names of chains end in what varies.
    const sets = names.map(([, name = '']) => name).filter((name) => !name.endsWith('-'));
    assert.ok(sets.length >= 8, `${sets}`);
    assert.deepEqual(
      sets.filter((name) => !existing.has(name)),
      [],
    );
  });
});
