/** `make test-cluster`: Kubernetes' e2e tests of networking with kube-proxy and with Portwide. */
import { randomBytes } from 'node:crypto';
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { release, tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { watchForEnd } from '../lab/demo/end.ts';
import { messageOf } from '../lab/errors.ts';
import { cgroupMounts } from './cgroups.ts';
import { layOut } from './layout.ts';
import { archivesIn } from './node.ts';
import { type ClusterOptions, readOptions } from './options.ts';
import { type ModePlan, type Plan, planRun } from './plan.ts';
import { checkPrograms, findCni } from './programs.ts';
import { type ModeResult, readJunit, regressions, renderTable } from './results.ts';
import { createRunner, type Runner } from './runner.ts';
import { describeRemoval, describeStep, type Step } from './steps.ts';

const ROOT = join(import.meta.dirname, '../..');
const DEFAULT_REPORT = join(ROOT, 'cluster-report');
const REPORT = resolve(process.env.REPORT || DEFAULT_REPORT);

async function main(): Promise<number> {
  const options = readOptions(process.env, REPORT);
  const isDryRun = process.argv.includes('--dry-run');
  const id = isDryRun ? 'ID' : randomBytes(2).toString('hex');
  const layout = layOut(id, tmpdir(), options.nodes, cgroupMounts());
  if (isDryRun) {
    const archives = options.images === '' ? ['IMAGES/*.tar'] : archivesIn(options.images);
    const cni = findCni(options.bin) ?? '/usr/lib/cni';
    printPlan(planRun(options, { layout, root: ROOT, cni, archives }));
    console.log(describeRemoval(layout));
    return 0;
  }

  const path = [options.bin, process.env.PATH].filter(Boolean).join(':');
  const { archives, cni } = checkMachine(options, path);
  const plan = planRun(options, { layout, root: ROOT, cni, archives });
  makeReport();
  const interrupt = new AbortController();
  const end = watchForEnd();
  end.interrupted.catch((error: unknown) => interrupt.abort(error));
  const runner = createRunner(layout, REPORT, path, interrupt.signal);
  try {
    await performAll(runner, plan.cluster);
    const results: ModeResult[] = [];
    for (const mode of plan.modes) {
      results.push(await testMode(runner, mode));
      writeFileSync(join(REPORT, 'table.md'), renderTable(titleOf(options), results));
      interrupt.signal.throwIfAborted();
    }
    console.log(`\n${renderTable(titleOf(options), results)}`);
    return results.some(({ error }) => error) || regressions(results).length > 0 ? 1 : 0;
  } finally {
    await runner.destroy();
    console.log(`The cluster has been removed. Logs and JUnit files: ${REPORT}`);
  }
}

/** @throws Error rather than delete a directory that may have other files. */
function makeReport(): void {
  if (REPORT === DEFAULT_REPORT) rmSync(REPORT, { recursive: true, force: true });
  mkdirSync(REPORT, { recursive: true });
  if (readdirSync(REPORT).length > 0) throw new Error(`REPORT=${REPORT}: must be empty`);
}

/** Starts the proxies of a mode, runs the tests, and removes the proxies. */
async function testMode(runner: Runner, plan: ModePlan): Promise<ModeResult> {
  let error: string | undefined;
  try {
    await performAll(runner, [...plan.start, ...plan.test]);
  } catch (thrown) {
    error = messageOf(thrown);
  }
  try {
    await performAll(runner, plan.stop);
  } catch (thrown) {
    error ??= messageOf(thrown);
  }
  const documents = junitIn(plan.report);
  if (documents.length === 0) error ??= 'e2e.test wrote no JUnit file';
  const counts = readJunit(documents.join('\n'));
  return { mode: plan.mode, ...counts, ...(error === undefined ? {} : { error }) };
}

function junitIn(directory: string): string[] {
  mkdirSync(directory, { recursive: true });
  return readdirSync(directory)
    .filter((name) => /^junit.*\.xml$/.test(name))
    .map((name) => readFileSync(join(directory, name), 'utf8'));
}

async function performAll(runner: Runner, steps: readonly Step[]): Promise<void> {
  for (const step of steps) {
    if (step.kind !== 'file') console.log(describeStep(step));
    await runner.perform(step);
  }
}

function printPlan({ cluster, modes }: Plan): void {
  for (const step of cluster) console.log(describeStep(step));
  for (const { mode, start, test, stop } of modes) {
    console.log(`# ${mode}`);
    for (const step of [...start, ...test, ...stop]) console.log(describeStep(step));
  }
}

/** @throws Error with everything that is missing. */
function checkMachine(options: ClusterOptions, path: string): { archives: string[]; cni: string } {
  checkPrograms(options.modes, options.bin, path);
  if (process.getuid?.() !== 0) throw new Error('This needs root to create namespaces.');
  if (options.images === '') {
    throw new Error(
      `IMAGES is not set: name a directory of image archives (*.tar) with ${options.pauseImage} and the images that "e2e.test --list-images" prints`,
    );
  }
  const archives = archivesIn(options.images);
  if (archives.length === 0) throw new Error(`IMAGES=${options.images}: no *.tar in it`);
  return { archives, cni: findCni(options.bin) ?? '' };
}

function titleOf({ nodes, focus }: ClusterOptions): string {
  return `Linux ${release()}, ${nodes} nodes, focus \`${focus}\``;
}

let status = 1;
try {
  status = await main();
} catch (error) {
  console.error(messageOf(error));
}
// Unfinished steps would keep the process alive. The output may be a pipe whose reader is slow.
process.stderr.write('', () => process.stdout.write('', () => process.exit(status)));
