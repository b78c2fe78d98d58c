import assert from 'node:assert/strict';
import {
  mkdirSync,
  mkdtempSync,
  renameSync,
  rmSync,
  symlinkSync,
  unlinkSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { SERVING_KINDS } from '../../../api/objects.ts';
import {
  loadManifestDirectory,
  MAX_FILE_BYTES,
  ManifestDirectoryError,
} from '../../../sources/manifests/directory.ts';
import { formatProblem, type ManifestProblem } from '../../../sources/manifests/problem.ts';
import { ManifestSource, type ManifestSourceOptions } from '../../../sources/manifests/source.ts';
import type { Source } from '../../../sources/source.ts';
import { RecordingSink, until } from '../recording-sink.ts';

const service = (name: string, port: number) =>
  `apiVersion: v1\nkind: Service\nmetadata:\n  name: ${name}\nspec:\n  clusterIP: 10.0.0.1\n  ports: [{name: p, port: ${port}}]\n`;
const kinds = SERVING_KINDS;
const BROKEN = 'kind: [\n';

describe('source: manifest source', () => {
  let root: string;
  let directory: string;
  let sink: RecordingSink;
  let problems: ManifestProblem[];
  let source: Source | undefined;

  const path = (name: string) => join(directory, name);
  const write = (name: string, text: string) => writeFileSync(path(name), text);
  /** An atomic rename with a constant mtime, as in reproducible archives. */
  const replace = (name: string, text: string) => {
    write('.tmp', text);
    utimesSync(path('.tmp'), 2000, 1000);
    renameSync(path('.tmp'), path(name));
  };
  const start = async (
    options: Partial<Pick<ManifestSourceOptions, 'rescanMs' | 'onRecovered' | 'onFaulty'>> = {},
  ) => {
    const onProblem = (problem: ManifestProblem) => void problems.push(problem);
    // Without the periodic rescan by default, so that only file events trigger scans.
    source = new ManifestSource({
      directory,
      kinds,
      sink,
      onProblem,
      rescanMs: 3_600_000,
      ...options,
    });
    await source.start();
  };
  const inForce = () => [...(source?.faults() ?? [])].map((fault) => fault.inForce);
  const lines = () => problems.map((problem) => formatProblem(problem).replaceAll(`${root}/`, ''));

  beforeEach(() => {
    root = mkdtempSync(join(tmpdir(), 'portwide-manifests-'));
    directory = join(root, 'd');
    mkdirSync(directory);
    sink = new RecordingSink();
    problems = [];
  });
  afterEach(async () => {
    await source?.stop();
    source = undefined;
    rmSync(root, { recursive: true, force: true });
  });

  it('delivers all objects before synced', async () => {
    write('b.yml', service('b', 2));
    write('a.yaml', service('a', 1));
    write('c.json', '{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}');
    for (const name of ['.hidden.yaml', '.a.yaml.swp', 'a.yaml~', 'notes.txt']) write(name, BROKEN);
    mkdirSync(path('d.yaml'));
    await start();
    assert.deepEqual(sink.calls, [
      '+ Service default/a',
      '+ Service default/b',
      '+ Node n',
      'synced Service',
      'synced EndpointSlice',
      'synced Node',
    ]);
    assert.deepEqual(problems, []);
  });

  it('fails to start when the directory is missing', async () => {
    directory = join(root, 'missing');
    await assert.rejects(start(), (error) => {
      assert.ok(error instanceof ManifestDirectoryError);
      assert.match(error.message, /^manifest directory ".*missing" cannot be read: ENOENT/);
      assert.ok(error.cause instanceof Error);
      return true;
    });
  });

  const writers = [
    ['in place', (text: string) => write('a.yaml', text)],
    ['by renaming over it', (text: string) => replace('a.yaml', text)],
  ] as const;
  for (const [how, rewrite] of writers) {
    it(`delivers only the differences of a file rewritten ${how}`, async () => {
      rewrite(`${service('a', 1)}---\n${service('b', 1)}`);
      await start();
      for (const port of [2, 3, 4]) {
        rewrite(`# ${port}\n${service('a', port)}---\n${service('b', 1)}`);
        await until(`a has port ${port}`, () => sink.port('a') === port);
      }
      rewrite(service('c', 1));
      await until('c is added', () => sink.port('c') === 1);
      assert.deepEqual(sink.calls.slice(5), [
        ...Array(3).fill('+ Service default/a'),
        '- Service default/a',
        '- Service default/b',
        '+ Service default/c',
      ]);
    });
  }

  it('detects new, renamed and removed files', async () => {
    await start();
    write('a.yaml', service('a', 1));
    await until('a is added', () => sink.port('a') === 1);
    renameSync(path('a.yaml'), path('z.yaml'));
    write('b.yaml', service('b', 1));
    await until('b is added', () => sink.port('b') === 1);
    unlinkSync(path('z.yaml'));
    await until('a is removed', () => sink.port('a') === undefined);
    assert.deepEqual(sink.calls.slice(3), [
      '+ Service default/a',
      '+ Service default/b', // the rename changed nothing
      '- Service default/a',
    ]);
  });

  it('keeps the last good objects of a broken file until it is fixed', async () => {
    write('a.yaml', `${service('a', 1)}---\n${service('b', 1)}`);
    await start();
    write('a.yaml', `${service('a', 2)}---\n${service('b', 70_000)}`);
    await until('the problem is reported', () => problems.length > 0);
    assert.deepEqual(lines(), [
      'd/a.yaml:9: Service default/b: spec.ports[0].port: must be an integer from 1 to 65535, not 70000',
    ]);
    assert.equal(sink.port('a'), 1);
    assert.deepEqual([...(source?.unreadable() ?? [])], [['Service', 1]]);
    const [fault] = source?.faults() ?? [];
    assert.equal(fault?.object, 'Service default/b');
    assert.match(fault.message, /a\.yaml:9: spec\.ports\[0\]\.port: must be an integer from 1/);
    assert.deepEqual(inForce(), ['last']);
    write('a.yaml', BROKEN);
    await until('the next problem is reported', () => problems.length > 1);
    assert.deepEqual([sink.port('a'), sink.port('b')], [1, 1]);
    write('a.yaml', service('a', 3));
    await until('a is updated', () => sink.port('a') === 3);
    assert.equal(sink.port('b'), undefined);
    assert.equal(problems.length, 2);
    assert.equal(source?.unreadable().size, 0);
    assert.deepEqual([...(source?.faults() ?? [])], []);
  });

  it('uses the readable objects of a file that was never good', async () => {
    write('a.yaml', `${service('a', 1)}---\n${service('b', 0)}`);
    await start();
    assert.deepEqual([sink.port('a'), problems.length], [1, 1]);
    assert.deepEqual(inForce(), ['none']);
    write('a.yaml', `${service('c', 1)}---\n${service('b', 0)}`);
    await until('c is added', () => sink.port('c') === 1);
    assert.equal(sink.port('a'), 1, 'no object is removed before the file is good');
    write('a.yaml', service('b', 1));
    await until('b is added', () => sink.port('b') === 1);
    assert.deepEqual([sink.port('a'), sink.port('c')], [undefined, undefined]);
  });

  it('says what is in force of a file that cannot be parsed', async () => {
    write('a.yaml', BROKEN);
    write('b.yaml', `${service('b', 1)}---\n${BROKEN}`);
    write('c.yaml', service('c', 1));
    await start();
    assert.deepEqual(inForce(), ['none', 'parts']);
    write('c.yaml', BROKEN);
    await until('the problem is reported', () => problems.length === 3);
    assert.deepEqual(inForce(), ['none', 'parts', 'last']);
  });

  it('keeps the objects of a file that is empty while it is rewritten', async () => {
    write('a.yaml', service('a', 1));
    await start();
    write('a.yaml', '');
    await until('the problem is reported', () => problems.length > 0);
    assert.equal(sink.port('a'), 1);
    assert.deepEqual(inForce(), [undefined]);
    write('a.yaml', '# none\n');
    await until('a is removed', () => sink.port('a') === undefined);
  });

  it('uses an object of the first of two files, then of the other', async () => {
    write('b.yaml', `# b\n${service('a', 2)}`);
    await start();
    write('a.yaml', service('a', 1));
    await until('the first file takes precedence', () => sink.port('a') === 1);
    assert.deepEqual(lines(), [
      'd/b.yaml:2: Service default/a: is not used: "a.yaml" defines the same object and takes precedence',
    ]);
    write('b.yaml', service('a', 3));
    write('c.yaml', service('c', 1));
    await until('c is added', () => sink.port('c') === 1);
    assert.equal(sink.port('a'), 1);
    assert.equal(problems.length, 1, 'the duplicate is reported only once');
    unlinkSync(path('a.yaml'));
    await until('the other file is used', () => sink.port('a') === 3);
  });

  it('does not count duplicates as unreadable', async () => {
    write('a.yaml', `${service('a', 1)}---\n${service('a', 2)}`);
    write('b.yaml', service('a', 3));
    await start();
    assert.deepEqual([problems.length, source?.unreadable().size], [2, 0]);
  });

  it('follows a ConfigMap mount', async () => {
    const put = (version: string, port: number) => {
      mkdirSync(path(version));
      write(join(version, 'a.yaml'), service('a', port));
      symlinkSync(version, path('..data_tmp'));
      renameSync(path('..data_tmp'), path('..data'));
    };
    put('..1', 1);
    symlinkSync(join('..data', 'a.yaml'), path('a.yaml'));
    await start();
    assert.equal(sink.port('a'), 1);
    for (const port of [2, 3]) {
      put(`..${port}`, port);
      await until(`a has port ${port}`, () => sink.port('a') === port);
    }
    assert.deepEqual([sink.objects.size, problems.length], [1, 0]);
  });

  it('keeps the objects behind a dangling link, and finds changes without file events', async () => {
    writeFileSync(join(root, 'elsewhere'), service('a', 1));
    symlinkSync(join(root, 'elsewhere'), path('a.yaml'));
    await start({ rescanMs: 20 });
    writeFileSync(join(root, 'elsewhere'), service('a', 2));
    await until('the change is found', () => sink.port('a') === 2);
    unlinkSync(join(root, 'elsewhere'));
    await until('the problem is reported', () => problems.length > 0);
    assert.equal(sink.port('a'), 2);
    unlinkSync(path('a.yaml'));
    await until('a is removed', () => sink.port('a') === undefined);
  });

  it('keeps all objects while the directory is missing, and reads a recreated directory', async () => {
    write('a.yaml', service('a', 1));
    await start({ rescanMs: 20 });
    renameSync(directory, join(root, 'away'));
    await until('the problem is reported', () => problems.length > 0);
    assert.match(
      lines()[0] ?? '',
      /^d: cannot be read: ENOENT.*; the objects read last stay in force$/,
    );
    assert.equal(sink.port('a'), 1);
    mkdirSync(join(root, 'next'));
    writeFileSync(join(root, 'next', 'a.yaml'), service('a', 2));
    renameSync(join(root, 'next'), directory);
    await until('the new file is read', () => sink.port('a') === 2);
    replace('a.yaml', service('a', 3));
    await until('the new directory is watched', () => sink.port('a') === 3);
    assert.equal(problems.length, 1);
  });

  it('delivers nothing after stop', async () => {
    write('a.yaml', service('a', 1));
    await start({ rescanMs: 1 });
    await source?.stop();
    const before = sink.calls.length;
    write('a.yaml', service('a', 2));
    const other = new RecordingSink();
    const next = new ManifestSource({
      directory,
      kinds,
      sink: other,
      onProblem: () => assert.fail(),
    });
    await next.start();
    await next.stop();
    assert.equal(other.port('a'), 2);
    assert.equal(sink.calls.length, before);
  });

  it('reports recovered files and the number of files with problems', async () => {
    const calls: string[] = [];
    write('a.yaml', BROKEN);
    write('b.yaml', BROKEN);
    write('good.yaml', service('good', 1));
    await start({
      onRecovered: (file, isGone) => calls.push(`${file.replace(`${root}/`, '')} ${isGone}`),
      onFaulty: (count) => calls.push(String(count)),
    });
    assert.deepEqual(calls, ['2']);
    replace('a.yaml', service('a', 1));
    await until('3 calls were made', () => calls.length === 3);
    unlinkSync(path('b.yaml'));
    await until('5 calls were made', () => calls.length === 5);
    write('good.yaml', BROKEN);
    await until('6 calls were made', () => calls.length === 6);
    assert.deepEqual(calls, ['2', 'd/a.yaml false', '1', 'd/b.yaml true', '0', '1']);
  });

  it('reports when the directory can be read again', async () => {
    const calls: string[] = [];
    await start({
      rescanMs: 10,
      onRecovered: (file) => calls.push(file.replace(`${root}/`, '')),
      onFaulty: (count) => calls.push(String(count)),
    });
    renameSync(directory, join(root, 'elsewhere'));
    await until('2 calls were made', () => calls.length === 2);
    renameSync(join(root, 'elsewhere'), directory);
    await until('4 calls were made', () => calls.length === 4);
    assert.deepEqual(calls, ['0', '1', 'd', '0']);
  });

  it('warns once about a slice without a Service', async () => {
    const slice = (labels: string) =>
      `apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: s${labels}}\naddressType: IPv4\n`;
    write('a.yaml', slice(''));
    await start();
    const expected = [
      'd/a.yaml:1: EndpointSlice default/s: metadata.labels["kubernetes.io/service-name"]: is missing, so the slice belongs to no Service; set the label to the name of a Service',
    ];
    assert.deepEqual(lines(), expected);
    write('a.yaml', `${slice('')}---\n${service('a', 1)}`);
    await until('the Service is added', () => sink.calls.includes('+ Service default/a'));
    assert.deepEqual(lines(), expected);
  });

  it('rejects files that are too large or not UTF-8', () => {
    write('a.yaml', `${service('a', 1)}# ${'x'.repeat(MAX_FILE_BYTES)}`);
    writeFileSync(path('b.yaml'), Buffer.from([0xff, 0xfe]));
    problems.push(...loadManifestDirectory(directory, kinds).problems);
    assert.match(lines()[0] ?? '', /^d\/a.yaml: is too large: \d+ bytes; the limit is 67108864$/);
    assert.match(lines()[1] ?? '', /^d\/b.yaml: cannot be read: .*utf-8/);
  });

  it('loads a directory in the order of file names and lines', () => {
    write('b.yaml', `${service('b', 2)}---\n${service('a', 2)}---\n${service('c', 0)}`);
    write('a.yaml', `${service('z', 1)}---\n${service('a', 1)}`);
    const loaded = loadManifestDirectory(directory, kinds);
    problems.push(...loaded.problems);
    assert.deepEqual(
      loaded.objects.map(({ object, file, line }) => `${file}:${line} ${object.key}`),
      ['a.yaml:1 default/z', 'a.yaml:9 default/a', 'b.yaml:1 default/b'],
    );
    assert.deepEqual(lines(), [
      'd/b.yaml:17: Service default/c: spec.ports[0].port: must be an integer from 1 to 65535, not 0',
      'd/b.yaml:9: Service default/a: is not used: "a.yaml" defines the same object and takes precedence',
    ]);
    assert.throws(() => loadManifestDirectory(path('none'), kinds), ManifestDirectoryError);
  });
});
