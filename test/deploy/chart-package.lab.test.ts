import assert from 'node:assert/strict';
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { execa } from 'execa';
import { CHART } from './chart.ts';
import { ROOT, readText } from './manifests.ts';

describe('chart: package', () => {
  let directory: string;
  beforeEach(() => {
    directory = mkdtempSync(join(tmpdir(), 'portwide-chart-'));
  });
  afterEach(() => rmSync(directory, { recursive: true, force: true }));

  async function createPackage(name: string, umask: string): Promise<string> {
    const output = join(directory, name);
    await execa('sh', ['-c', `umask ${umask} && node scripts/dist/chart.ts ${output}`], {
      cwd: ROOT,
      env: { SOURCE_DATE_EPOCH: '86400' },
    });
    const [file = '', ...others] = readdirSync(output);
    const { version } = JSON.parse(readText('package.json'));
    assert.deepEqual([file, others], [`portwide-${version}.tgz`, []]);
    return join(output, file);
  }

  it('a second package has the same bytes', async () => {
    const [a, b] = await Promise.all([createPackage('a', '022'), createPackage('b', '077')]);
    assert.ok(readFileSync(a).equals(readFileSync(b)));
    const list = ['--utc', '--full-time', '--numeric-owner', '-tvzf', a];
    const lines = (await execa('tar', list)).stdout.split('\n');
    for (const line of lines) {
      assert.match(line, /^(-rw-r--r--|drwxr-xr-x) 0\/0 +\d+ 1970-01-02 00:00:00 portwide\//);
    }
    const paths = lines.map((line) => line.split(' ').at(-1) ?? '');
    assert.deepEqual(paths, paths.toSorted());
  });

  it('a package contains the files of deploy/ instead of links, except kustomizations', async () => {
    const file = await createPackage('a', '022');
    await execa('tar', ['-xzf', file, '-C', directory]);
    const unpacked = join(directory, 'portwide');
    const files = readdirSync(unpacked, { recursive: true, withFileTypes: true })
      .filter((entry) => !entry.isDirectory())
      .map((entry) => join(entry.parentPath, entry.name).slice(unpacked.length + 1));
    for (const path of files) {
      assert.equal(readFileSync(join(unpacked, path), 'utf8'), readText(join(CHART, path)), path);
    }
    assert.deepEqual(files.filter((path) => path.startsWith('files/')).sort(), [
      'files/admin-network-policy/adminnetworkpolicies.yaml',
      'files/admin-network-policy/baselineadminnetworkpolicies.yaml',
      'files/admission-node-ports.yaml',
      'files/admission.yaml',
      'files/base/config.yaml',
      'files/base/daemonset.yaml',
      'files/base/rbac.yaml',
      'files/crds/cidrgroup.yaml',
      'files/dns/deployment.yaml',
      'files/dns/disruption-budget.yaml',
      'files/dns/rbac.yaml',
      'files/dns/service.yaml',
      'files/kube-dns/service.yaml',
      'files/monitoring/alerts.yaml',
      'files/monitoring/dashboard.json',
      'files/network-policy/rbac.yaml',
    ]);
  });
});
