/**
 * `node scripts/coverage.ts DIRECTORY` prints how many lines of code the processes that ran with
 * NODE_V8_COVERAGE=DIRECTORY executed, for each pure folder, and exits with 1 if a folder is below
 * its floor. `make coverage` runs it after the unit tests.
 */
import { globSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { codeLines, executedLines, type ScriptCoverage } from './covered/lines.ts';

/** Lines that the error of a folder names. */
const SHOWN = 40;
const ROOT = fileURLToPath(new URL('..', import.meta.url));

/**
 * The pure folders and files, and the lowest percentage that passes: what the unit tests reach,
 * minus one. Raise a floor with the tests; do not lower it for new code.
 */
const FLOORS: readonly (readonly [name: string, files: string, percent: number])[] = [
  ['api', 'api/*.ts', 98.5],
  ['services', 'services/*.ts', 96.5],
  ['endpoints', 'endpoints/*.ts', 97.5],
  ['traffic', 'traffic/*.ts', 95.5],
  ['nft', 'nft/{element,keys,rule,speaker-priority,table}.ts', 98.6],
  [
    'nftables',
    'nftables/{affinity,chains,compile*,element,element-changes,element-diff,element-owners,intervals,keys,localhost,maps,owned-chains,phases,plan,static-chains,table-script}.ts',
    96.6,
  ],
  [
    'iptables',
    'iptables/{base-rules,chains,compile,port-tree,restore,rule,ruleset,vip-tree}.ts',
    95.5,
  ],
  [
    'ipvs',
    'ipvs/{compare,compile,desired-items,item-text,items,marks,node-port-conflicts,plan,port-ranges,rules*,sets,table-changes}.ts',
    96.2,
  ],
  ['policy/compile', 'policy/compile/*.ts', 85.5],
  ['policy/model', 'policy/model/*.ts', 97.4],
];

/** Adds the executed lines of each file in the reports of all processes. */
function readReports(directory: string, files: ReadonlyMap<string, string>) {
  const executed = new Map<string, Set<number>>();
  for (const report of readdirSync(directory)) {
    const text = readFileSync(join(directory, report), 'utf8');
    const { result } = JSON.parse(text) as { result: readonly ScriptCoverage[] };
    for (const script of result) {
      const source = files.get(script.url);
      if (source === undefined) continue;
      const lines = executed.get(script.url) ?? new Set();
      for (const line of executedLines(source, script)) lines.add(line);
      executed.set(script.url, lines);
    }
  }
  return executed;
}

function main(directory: string): void {
  const folders = FLOORS.map(([name, pattern, floor]) => {
    const urls = globSync(pattern, { cwd: ROOT }).map(
      (path) => pathToFileURL(join(ROOT, path)).href,
    );
    if (urls.length === 0) throw new Error(`${pattern} matches no file`);
    return { name, floor, urls };
  });
  const urls = folders.flatMap((folder) => folder.urls);
  const sources = new Map(urls.map((url) => [url, readFileSync(fileURLToPath(url), 'utf8')]));
  const executed = readReports(directory, sources);

  console.log('folder            lines  executed  percent  floor');
  for (const { name, floor, urls: files } of folders) {
    let total = 0;
    const missed: string[] = [];
    for (const url of files) {
      const lines = codeLines(sources.get(url) ?? '');
      total += lines.size;
      const rest = [...lines].filter((line) => executed.get(url)?.has(line) !== true);
      const path = fileURLToPath(url).slice(ROOT.length);
      missed.push(...rest.map((line) => `${path}:${line}`));
    }
    const percent = (100 * (total - missed.length)) / total;
    const cells = [total, total - missed.length, percent.toFixed(1), floor.toFixed(1)];
    const [lines = '', count = '', share = '', limit = ''] = cells.map(String);
    console.log(
      `${name.padEnd(16)} ${lines.padStart(6)} ${count.padStart(9)} ${share.padStart(8)} ${limit.padStart(6)}`,
    );
    if (percent >= floor) continue;
    process.exitCode = 1;
    const rest = missed.length > SHOWN ? ` and ${missed.length - SHOWN} more` : '';
    console.error(
      `${name} is below its floor; not executed: ${missed.slice(0, SHOWN).join(' ')}${rest}`,
    );
  }
}

const [directory] = process.argv.slice(2);
if (directory === undefined) throw new Error('usage: node scripts/coverage.ts DIRECTORY');
main(directory);
