import assert from 'node:assert/strict';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { execa } from 'execa';
import { parse, parseAllDocuments } from 'yaml';
import { schemaFaults } from '../deploy/schema.ts';
import { PORTWIDE } from '../portwide.ts';
import { consoleCommands, fencedBlocks } from './page.ts';

const file = (path: string) => new URL(`../../${path}`, import.meta.url).pathname;
const page = readFileSync(file('docs/dns.md'), 'utf8');

describe('dns: docs/dns.md', () => {
  const [services = '', podText = ''] = fencedBlocks(page, 'yaml');
  let directory: string;
  before(() => {
    directory = mkdtempSync(join(tmpdir(), 'portwide-docs-'));
    mkdirSync(join(directory, 'manifests'));
    writeFileSync(join(directory, 'manifests', 'services.yaml'), services);
  });
  after(() => rmSync(directory, { recursive: true, force: true }));

  /** As a reader would, whose PATH has `portwide`. */
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

  it('has commands, of `portwide env` above all', () => {
    const names = commands.map(({ command }) => /portwide \w+/.exec(command)?.[0]);
    assert.equal(names.filter((name) => name === 'portwide env').length, 4);
    assert.equal(names.filter((name) => name === 'portwide validate').length, 1);
    assert.equal(names.length, 5);
  });

  for (const { command, output } of commands) {
    it(`shows what is printed by: ${command}`, async () => {
      assert.equal(await shell(command), output);
    });
  }

  it('has manifests as Kubernetes knows them', async () => {
    for (const document of parseAllDocuments(`${services}---\n${podText}`)) {
      assert.deepEqual(await schemaFaults(document.toJS()), []);
    }
  });

  it('has a Pod with the variables that are right, by what `portwide env -o k8s` prints', async () => {
    const { spec, metadata } = parse(podText);
    assert.equal(spec.enableServiceLinks, false);
    const print = `portwide env --manifests manifests -n ${metadata.namespace} -o k8s`;
    const { env } = parse((await shell(print)) ?? '');
    const own = parse((await shell(`${print} --no-service-links`)) ?? '').env;
    assert.deepEqual([...own, ...spec.containers[0].env], env);
  });

  it('tells of an annotated Service what a kubelet makes of it', async () => {
    const unmarked = services.replace(/\n {2}annotations:\n.*: all/, '');
    assert.notEqual(unmarked, services);
    mkdirSync(join(directory, 'stock'));
    writeFileSync(join(directory, 'stock', 'services.yaml'), unmarked);
    const printed = await shell('portwide env --manifests stock -n voice -o json | grep SIP_');
    const variables = [...(printed ?? '').matchAll(/"(\w+)": "(.*)"/g)].map(
      ([, name, value]) => `${name}=${value}`,
    );
    const [host, ...others] = variables;
    assert.equal(host, 'SIP_SERVICE_HOST=10.96.0.40');
    const told = [...page.matchAll(/`(SIP_\w+=[^`]+)`/g)].map(([, variable]) => variable);
    assert.deepEqual(told, others.slice(0, 2));
    assert.equal(others.length - told.length, 4);
    assert.match(page, /four more/);
  });

  it("has templates for CoreDNS that match the Service's names and no others", () => {
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

  it('links to headings and pages that are there', () => {
    const headings = [...page.matchAll(/^## (.*)$/gm)].map(([, title = '']) =>
      title.toLowerCase().replaceAll(' ', '-'),
    );
    for (const [, anchor = ''] of page.matchAll(/\]\(#([^)]+)\)/g)) {
      assert.ok(headings.includes(anchor), anchor);
    }
  });
});
