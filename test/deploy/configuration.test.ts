import assert from 'node:assert/strict';
import { readConfigFile } from '../../config/file.ts';
import { readObject } from './manifests.ts';

it("configuration: the DaemonSet's configuration is valid and has no warnings", () => {
  const { data } = readObject<{ data: Readonly<Record<string, string>> }>(
    'deploy/base/config.yaml',
    'ConfigMap',
  );
  const { problems, warnings, options } = readConfigFile(data['config.conf'] ?? '', 'config.conf');
  assert.deepEqual([problems, warnings], [[], []]);
  assert.equal(options.kubeconfig, '/var/lib/portwide/kubeconfig.conf');
});
