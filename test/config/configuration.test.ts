import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync, truncateSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { loadConfiguration } from '../../config/configuration.ts';

const HEAD = 'apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n';

describe('configuration: loadConfiguration', () => {
  let directory: string;
  before(() => {
    directory = mkdtempSync(join(tmpdir(), 'portwide-configuration-'));
  });
  after(() => rmSync(directory, { recursive: true, force: true }));

  it('reads the file of --config and returns its content', async () => {
    const path = join(directory, 'good.conf');
    writeFileSync(path, `${HEAD}mode: ipvs\n`);
    const { options, file } = await loadConfiguration({ config: path });
    assert.equal(options.proxyMode, 'ipvs');
    assert.deepEqual(file, { path, content: `${HEAD}mode: ipvs\n` });
  });

  it('reads flags alone when --config is empty', async () => {
    const { options, file } = await loadConfiguration({ config: '', proxyMode: 'ipvs' });
    assert.equal(options.proxyMode, 'ipvs');
    assert.equal(file, undefined);
  });

  const invalidFiles: readonly (readonly [string, (path: string) => void, RegExp])[] = [
    ['a missing file', () => {}, /^\S+: cannot be read: ENOENT/],
    ['a directory', (path) => execFileSync('mkdir', [path]), /cannot be read: not a regular file$/],
    ['a pipe', (path) => execFileSync('mkfifo', [path]), /cannot be read: not a regular file$/],
    [
      'a binary file',
      (path) =>
        writeFileSync(
          path,
          Uint8Array.from({ length: 256 }, (_, byte) => byte),
        ),
      /cannot be read: The encoded data was not valid/,
    ],
    [
      'a file over the size limit',
      (path) => {
        writeFileSync(path, '');
        truncateSync(path, 2 ** 40);
      },
      /cannot be read: larger than 1048576 bytes$/,
    ],
    [
      'an empty file',
      (path) => writeFileSync(path, ''),
      /: must be a KubeProxyConfiguration, not an empty file$/,
    ],
    [
      'a file with several problems, and reports all of them',
      (path) => writeFileSync(path, `${HEAD}mode: 7\noomScoreAdj: 7000\n`),
      /^\S+: mode: .*\n\S+: oomScoreAdj: .*$/,
    ],
  ];
  for (const [index, [name, make, message]] of invalidFiles.entries()) {
    it(`rejects ${name}`, async () => {
      const path = join(directory, `bad-${index}`);
      make(path);
      await assert.rejects(loadConfiguration({ config: path }), {
        name: 'ConfigurationError',
        message,
      });
    });
  }
});
