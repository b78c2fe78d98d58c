import assert from 'node:assert/strict';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { execa } from 'execa';
import { parse } from 'yaml';
import { PORTWIDE } from '../portwide.ts';
import { consoleCommands, fencedBlocks } from './page.ts';

const file = (path: string) => new URL(`../../${path}`, import.meta.url).pathname;
const page = readFileSync(file('docs/guide/dns-and-environment.md'), 'utf8');

describe('docs/guide/dns-and-environment.md', () => {
  const [services = '', podText = ''] = fencedBlocks(page, 'yaml');
  let directory: string;
  before(() => {
    directory = mkdtempSync(join(tmpdir(), 'portwide-docs-'));
    mkdirSync(join(directory, 'manifests'));
    writeFileSync(join(directory, 'manifests', 'services.yaml'), services);
  });
  after(() => rmSync(directory, { recursive: true, force: true }));

  /** Runs a command as a reader would, with `portwide` in PATH. */
  const shell = async (command: string) => {
    const { all } = await execa('sh', ['-c', command], {
      cwd: directory,
      all: true,
      reject: false,
      env: { PATH: `${dirname(PORTWIDE)}:${process.env.PATH}` },
    });
    return all;
  };

  const commands = fencedBlocks(page, 'console').flatMap(consoleCommands);

  it('shows one `portwide validate` and four `portwide env` commands', () => {
    const names = commands.map(({ command }) => /portwide \w+/.exec(command)?.[0]);
    assert.equal(names.filter((name) => name === 'portwide env').length, 4);
    assert.equal(names.filter((name) => name === 'portwide validate').length, 1);
    assert.equal(names.length, 5);
  });

  for (const { command, output } of commands) {
    it(`shows the output of: ${command}`, async () => {
      assert.equal(await shell(command), output);
    });
  }

  it('shows a Pod with the variables that `portwide env -o k8s` prints', async () => {
    const { spec, metadata } = parse(podText);
    assert.equal(spec.enableServiceLinks, false);
    const print = `portwide env --manifests manifests -n ${metadata.namespace} -o k8s`;
    const { env } = parse((await shell(print)) ?? '');
    const own = parse((await shell(`${print} --no-service-links`)) ?? '').env;
    assert.deepEqual([...own, ...spec.containers[0].env], env);
  });

  it('names the variables that a kubelet makes of an annotated Service', async () => {
    const listed = services.replace(/\n {2}annotations:\n.*: all/, '');
    assert.notEqual(listed, services);
    mkdirSync(join(directory, 'stock'));
    writeFileSync(join(directory, 'stock', 'services.yaml'), listed);
    const printed = await shell('portwide env --manifests stock -n voice -o json | grep SIP_');
    const variables = [...(printed ?? '').matchAll(/"(\w+)": "(.*)"/g)].map(
      ([, name, value]) => `${name}=${value}`,
    );
    const [host, ...others] = variables;
    assert.equal(host, 'SIP_SERVICE_HOST=10.96.0.40');
    const named = [...page.matchAll(/`(SIP_\w+=[^`]+)`/g)].map(([, variable]) => variable);
    assert.deepEqual(named, others.slice(0, 2));
    assert.equal(others.length - named.length, 4);
    assert.match(page, /four more/);
  });

  it("shows CoreDNS templates that match the Service's names and no others", () => {
    const [one, namespace, ...rest] = [...page.matchAll(/match "([^"]+)"/g)].map(
      ([, expression = '']) => new RegExp(expression),
    );
    assert.ok(one !== undefined && namespace !== undefined && rest.length === 0);
    for (const [name, isOne, isNamespace] of [
      ['sip.voice.svc.cluster.local.', true, true],
      ['_sip._udp.sip.voice.svc.cluster.local.', true, true],
      ['10-244-1-11.sip.voice.svc.cluster.local.', true, true],
      ['any.any.sip.voice.svc.cluster.local.', true, true],
      ['web.voice.svc.cluster.local.', false, true],
      ['mysip.voice.svc.cluster.local.', false, true],
      ['sip.other.svc.cluster.local.', false, false],
      ['sip.voice.pod.cluster.local.', false, false],
      ['sip.myvoice.svc.cluster.local.', false, false],
      ['sip-voice.svc.cluster.local.', false, false],
      ['sip.voice.svc.cluster.local.example.org.', false, false],
      ['voice.svc.cluster.local.', false, false],
    ] as const) {
      assert.deepEqual([one.test(name), namespace.test(name)], [isOne, isNamespace], name);
    }
  });
});
