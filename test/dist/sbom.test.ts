import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { packagesBill } from '../../scripts/dist/sbom.ts';
import { BUNDLE } from '../portwide.ts';

const { dependencies } = JSON.parse(
  readFileSync(new URL('../../package.json', import.meta.url), 'utf8'),
);

/** Directories of the bundled packages. */
const bundled = [
  ...readFileSync(`${BUNDLE}/bundle/LICENSES`, 'utf8').matchAll(/^=== (node_modules\/.*)$/gm),
].map(([, directory = '']) => directory);

interface Component {
  readonly 'bom-ref': string;
  readonly cpe?: string;
  readonly properties?: readonly { readonly value: string }[];
  readonly externalReferences?: readonly {
    readonly url: string;
    readonly hashes: readonly { readonly content: string }[];
  }[];
}

function components(): Component[] {
  return JSON.parse(packagesBill(bundled, ['amd64', 'arm64'], 0)).components;
}

describe('bill of materials', () => {
  it('names each dependency in package.json, and the binaries of both architectures', () => {
    const references = components().map((each) => each['bom-ref']);
    for (const [name, version] of Object.entries<string>(dependencies)) {
      if (name === 'node') continue;
      // `npm:NAME@VERSION` is a package under another name.
      const published = version.startsWith('npm:') ? version.slice(4) : `${name}@${version}`;
      const reference = `pkg:npm/${published.replace(/^@/, '%40')}`;
      assert.ok(references.includes(reference), reference);
    }
    for (const arch of ['x64', 'arm64']) {
      assert.ok(references.includes(`pkg:npm/node-linux-${arch}@${dependencies.node}`));
      const koffi = `pkg:npm/%40koromix/koffi-linux-${arch}@${dependencies.koffi}`;
      assert.ok(references.includes(koffi));
    }
    assert.equal(new Set(references).size, references.length);
  });

  it('leaves out packages that are installed, but not bundled', () => {
    const text = JSON.stringify(components());
    for (const name of ['openid-client', 'esbuild', 'mocha'])
      assert.doesNotMatch(text, RegExp(name));
  });

  it('has the name under which vulnerabilities of Node.js are published', () => {
    const [node] = components().filter(({ cpe }) => cpe !== undefined);
    assert.ok(node?.cpe?.startsWith(`cpe:2.3:a:nodejs:node.js:${dependencies.node}:`));
  });

  it('has URL and digest of each npm package', () => {
    const yaml = components().find((each) => each['bom-ref'].startsWith('pkg:npm/yaml@'));
    const [reference] = yaml?.externalReferences ?? [];
    const url = `https://registry.npmjs.org/yaml/-/yaml-${dependencies.yaml}.tgz`;
    assert.equal(reference?.url, url);
    assert.match(reference?.hashes[0]?.content ?? '', /^[0-9a-f]{128}$/);
  });

  it('has packages of Debian with the versions that the package depends on', () => {
    const libc = components().find((each) => each['bom-ref'] === 'pkg:deb/debian/libc6');
    assert.equal(libc?.properties?.[0]?.value, 'libc6 (>= 2.28)');
  });

  it('is the same for the same content, and has another serial number for another', () => {
    const first = packagesBill(bundled, ['amd64'], 0);
    assert.equal(packagesBill(bundled, ['amd64'], 0), first);
    const number = (text: string) => JSON.parse(text).serialNumber;
    assert.notEqual(number(packagesBill(bundled, ['amd64'], 1)), number(first));
    const uuid = /^urn:uuid:[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/;
    assert.match(number(first), uuid);
  });
});
