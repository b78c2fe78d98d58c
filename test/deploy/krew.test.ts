import assert from 'node:assert/strict';
import { accessSync, constants, existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { parse } from 'yaml';
import { VERSION } from '../../process/version.ts';
import { ROOT, readObject, readText } from './manifests.ts';

interface KrewPlugin {
  readonly apiVersion: string;
  readonly kind: string;
  readonly metadata: { readonly name: string };
  readonly spec: {
    readonly version: string;
    readonly shortDescription: string;
    readonly platforms: readonly {
      readonly bin: string;
      readonly uri: string;
      readonly sha256: string;
      readonly files: readonly { readonly from: string }[];
    }[];
  };
}

describe('deploy/krew/portwide.yaml', () => {
  const plugin = parse(readText('deploy/krew/portwide.yaml')) as KrewPlugin;

  it('is a plugin of this version', () => {
    const { apiVersion, kind, metadata, spec } = plugin;
    assert.deepEqual(
      [apiVersion, kind, metadata.name, spec.version],
      ['krew.googlecontainertools.github.com/v1alpha2', 'Plugin', 'portwide', `v${VERSION}`],
    );
    // Krew's limit for its list of plugins.
    assert.ok(spec.shortDescription.length <= 50);
  });

  it('installs files that exist, among them an executable kubectl-portwide', () => {
    for (const { bin, files, uri, sha256 } of plugin.spec.platforms) {
      for (const { from } of files) assert.ok(existsSync(join(ROOT, from)), from);
      assert.ok(files.some(({ from }) => from === bin));
      accessSync(join(ROOT, bin), constants.X_OK);
      assert.match(uri, /^https:.*\.tar\.gz$/);
      assert.match(sha256, /^[0-9a-f]{64}$/);
    }
  });

  it('has the name under which package.json installs it', () => {
    const { bin } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8')) as {
      bin: Readonly<Record<string, string>>;
    };
    assert.equal(bin['kubectl-portwide'], './kubectl-portwide');
  });
});

describe('kubectl-portwide', () => {
  it('has the namespace, label, container and program of the DaemonSet and the image', () => {
    const script = readText('kubectl-portwide');
    const { metadata, spec } = readObject<{
      metadata: { namespace: string };
      spec: {
        selector: { matchLabels: Readonly<Record<string, string>> };
        template: { spec: { containers: readonly { name: string }[] } };
      };
    }>('deploy/base/daemonset.yaml', 'DaemonSet');
    const [label = []] = Object.entries(spec.selector.matchLabels);
    const [, program] = /ENTRYPOINT \["(.*)"\]/.exec(readText('Containerfile')) ?? [];
    for (const line of [
      `agent_namespace=\${PORTWIDE_NAMESPACE:-${metadata.namespace}}`,
      `selector=\${PORTWIDE_SELECTOR:-${label.join('=')}}`,
      `container=${spec.template.spec.containers[0]?.name}`,
      `program=${program}`,
    ]) {
      assert.ok(script.includes(`\n${line}\n`), line);
    }
  });
});
