import assert from 'node:assert/strict';
import { mkdtempSync, rmdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { ALL_PORTS, nodeManifest, serviceManifest, sliceManifest } from '../e2e/manifests.ts';
import { createLab, type Lab, waitFor } from '../lab/lab.ts';
import { ROOT, readObject } from './manifests.ts';

const { spec } = readObject<{
  spec: {
    template: {
      spec: { containers: readonly [{ securityContext: { capabilities: { add: string[] } } }] };
    };
  };
}>('deploy/base/daemonset.yaml', 'DaemonSet');
const CAPABILITIES = spec.template.spec.containers[0].securityContext.capabilities.add;

/**
 * What a runtime does for such a container, as far as the kernel is concerned: a root that cannot be
 * written but for the lock, /proc/sys that cannot, these capabilities, and no way to more.
 */
const CONTAINER = `
set -e
root=$1 capabilities=$2
shift 2
touch /run/xtables.lock
mount --rbind / "$root"
mount --bind /run/xtables.lock "$root/run/xtables.lock"
mount --bind /proc/sys "$root/proc/sys"
mount -o remount,bind,ro "$root/proc/sys"
mount -o remount,bind,ro "$root"
exec chroot "$root" setpriv --no-new-privs --bounding-set="$capabilities" --inh-caps=-all "$@"
`;

/** The host's limit of connections is not a namespace's to set, nor this process's score to lower. */
const FLAGS = [
  '--hostname-override=node',
  '--cluster-cidr=10.244.0.0/16,fd00:10:244::/48',
  '--conntrack-max-per-core=0',
  '--oom-score-adj=0',
];
const VIPS = ['10.96.0.10', 'fd00:10:96::10'];
const ROUTE_LOCALNET = 'net.ipv4.conf.all.route_localnet';

const MODES = [
  ['--proxy-mode=nftables'],
  ['--proxy-mode=iptables', '--iptables-variant=nft'],
  ['--proxy-mode=iptables', '--iptables-variant=legacy'],
] as const;

for (const mode of MODES) {
  describe(`the rights of the DaemonSet, ${mode.join(' ')}`, () => {
    const isLegacy = mode[1]?.endsWith('legacy') ?? false;
    let lab: Lab;
    let directory: string;
    /** Where an agent sees the root; empty for everybody else, as its removal makes sure. */
    let root: string;
    let log: string[];

    before(async () => {
      lab = await createLab({ pods: 1 });
      await lab.pods[0]?.serveEveryPort();
      directory = mkdtempSync(join(tmpdir(), 'portwide-rights-'));
      root = mkdtempSync(join(tmpdir(), 'portwide-root-'));
      const items = [
        nodeManifest([lab.node.ipv4, lab.node.ipv6]),
        serviceManifest('all', { annotations: ALL_PORTS, spec: { clusterIPs: VIPS } }),
        ...([4, 6] as const).map((family) => sliceManifest('all', family, lab.pods)),
      ];
      const list = { apiVersion: 'v1', kind: 'List', items };
      writeFileSync(join(directory, 'objects.json'), JSON.stringify(list));
    });
    after(async () => {
      await lab?.destroy();
      rmdirSync(root);
      rmSync(directory, { recursive: true, force: true });
    });
    beforeEach(() => {
      log = [];
    });

    /** Runs the agent in the like of a container. */
    const run = (capabilities: readonly string[]) => {
      const set = ['-all', ...capabilities.map((each) => `+${each.toLowerCase()}`)].join();
      const agent = [join(ROOT, 'portwide'), 'run', `--manifests=${directory}`];
      const command = ['-c', CONTAINER, 'sh', root, set, ...agent, ...FLAGS];
      const child = lab.node.spawn('unshare', [
        '--mount',
        '--propagation=private',
        'sh',
        ...command,
        ...mode,
      ]);
      for (const stream of [child.stdout, child.stderr]) {
        stream?.on('data', (chunk) => log.push(...String(chunk).trim().split('\n')));
      }
      return child;
    };

    it('are enough, where the init container has been', async () => {
      await lab.node.exec(join(ROOT, 'portwide'), ['run', '--init-only', ...mode, ...FLAGS]);
      const child = run(CAPABILITIES);
      await waitFor('both families are served', () => {
        assert.equal(child.exitCode, null, log.join('\n'));
        return log.filter((line) => line.includes('"serving"')).length === 2;
      });
      for (const vip of VIPS) {
        assert.equal((await lab.client.tcp(vip, 5060)).outcome, 'answered');
      }
      child.kill('SIGTERM');
      await child;
      // Of settings there are warnings, as in kube-proxy.
      const warnings = log.filter((line) => !/"level":30|"setting"/.test(line));
      assert.deepEqual(warnings, []);
    });

    // Node ports on 127.0.0.1 take one, and are for mode iptables alone.
    if (mode[0].endsWith('iptables'))
      it('leave sysctls to the init container', async () => {
        await lab.node.exec('sysctl', ['-q', '-w', `${ROUTE_LOCALNET}=0`]);
        const child = run(CAPABILITIES);
        await waitFor('the agent says so', () =>
          log.some((line) => line.includes('EROFS') && line.includes(ROUTE_LOCALNET)),
        );
        child.kill('SIGTERM');
        await child;
      });

    // NET_RAW is for iptables-legacy alone.
    for (const capability of CAPABILITIES.filter((each) => isLegacy || each !== 'NET_RAW')) {
      it(`${capability} is needed`, async () => {
        const others = CAPABILITIES.filter((each) => each !== capability);
        const child = run(others);
        await assert.rejects(child);
        assert.equal(child.exitCode, 1, log.join('\n'));
        assert.match(log.join('\n'), /does not work on this node|needs CAP_NET_ADMIN/);
      });
    }
  });
}
