import assert from 'node:assert/strict';
import { mkdtempSync, rmdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { ALL_PORTS, nodeManifest, serviceManifest, sliceManifest } from '../e2e/manifests.ts';
import { createLab, iptablesRules, type Lab, waitFor } from '../lab/lab.ts';
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
 * Emulates a container runtime for the kernel's purposes: a read-only root except for the lock and
 * the directory of the status socket, a read-only /proc/sys, these capabilities, and no_new_privs.
 */
const CONTAINER = `
set -e
root=$1 capabilities=$2
shift 2
touch /run/xtables.lock
mkdir -p /run/portwide
mount --rbind / "$root"
mount --bind /run/xtables.lock "$root/run/xtables.lock"
mount --bind /proc/sys "$root/proc/sys"
mount -o remount,bind,ro "$root/proc/sys"
mount -o remount,bind,ro "$root"
mount -t tmpfs tmpfs "$root/run/portwide"
exec chroot "$root" setpriv --no-new-privs --bounding-set="$capabilities" --inh-caps=-all "$@"
`;

/** The conntrack limit is not namespaced, and this process cannot lower its OOM score. */
const FLAGS = [
  '--hostname-override=node',
  '--cluster-cidr=10.244.0.0/16,fd00:10:244::/48',
  '--conntrack-max-per-core=0',
  '--oom-score-adj=0',
];
const VIPS = ['10.96.0.10', 'fd00:10:96::10'];
const ROUTE_LOCALNET = 'net.ipv4.conf.all.route_localnet';

/** Without warnings about settings, which are kube-proxy's. */
function warningsIn(log: readonly string[]): string[] {
  return log.filter((line) => !/"level":30|"setting"/.test(line));
}

const MODES = [
  ['--proxy-mode=nftables'],
  ['--proxy-mode=iptables', '--iptables-variant=nft'],
  ['--proxy-mode=iptables', '--iptables-variant=legacy'],
] as const;

for (const mode of MODES) {
  describe(`rights of the DaemonSet: ${mode.join(' ')}`, () => {
    const isLegacy = mode[1]?.endsWith('legacy') ?? false;
    let lab: Lab;
    let directory: string;
    /**
     * Mount point of the agent's root. It is empty outside the agent's mount namespace, as its
     * removal verifies.
     */
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

    /** Runs the agent as in a container. */
    const run = (capabilities: readonly string[], flags: readonly string[] = mode) => {
      const set = ['-all', ...capabilities.map((each) => `+${each.toLowerCase()}`)].join();
      const agent = [join(ROOT, 'portwide'), 'run', `--manifests=${directory}`];
      const command = ['-c', CONTAINER, 'sh', root, set, ...agent, ...FLAGS];
      const child = lab.node.spawn('unshare', [
        '--mount',
        '--propagation=private',
        'sh',
        ...command,
        ...flags,
      ]);
      for (const stream of [child.stdout, child.stderr]) {
        stream?.on('data', (chunk) => log.push(...String(chunk).trim().split('\n')));
      }
      return child;
    };

    it('the agent works with these rights after the init container has run', async () => {
      await lab.node.exec(join(ROOT, 'portwide'), ['run', '--init-only', ...mode, ...FLAGS]);
      const child = run(CAPABILITIES);
      await waitFor('both families are served', () => {
        assert.equal(child.nodeChildProcess.exitCode, null, log.join('\n'));
        return log.filter((line) => line.includes('"serving"')).length === 2;
      });
      for (const vip of VIPS) {
        assert.equal((await lab.client.tcp(vip, 5060)).outcome, 'answered');
      }
      child.kill('SIGTERM');
      await child;
      assert.deepEqual(warningsIn(log), []);
    });

    // Node ports on 127.0.0.1 require one, and exist only in mode iptables.
    if (mode[0].endsWith('iptables'))
      it('the agent without the init container cannot set sysctls', async () => {
        await lab.node.exec('sysctl', ['-q', '-w', `${ROUTE_LOCALNET}=0`]);
        const child = run(CAPABILITIES);
        await waitFor('the agent logs it', () =>
          log.some((line) => line.includes('EROFS') && line.includes(ROUTE_LOCALNET)),
        );
        child.kill('SIGTERM');
        await child;
      });

    if (mode[0].endsWith('iptables'))
      it('the agent takes over to mode nftables, except for a sysctl that an init container restores', async () => {
        const NFTABLES = ['--proxy-mode=nftables'];
        const init = (flags: readonly string[]) =>
          lab.node.exec(join(ROOT, 'portwide'), ['run', '--init-only', ...flags, ...FLAGS]);
        const isOpen = async () =>
          (await lab.node.exec('sysctl', ['-n', ROUTE_LOCALNET])).stdout === '1';
        const chains = async () => {
          const rules = [4, 6].map((family) =>
            iptablesRules(lab.node, isLegacy ? 'legacy' : 'nft', family as 4 | 6, 'filter'),
          );
          return (await Promise.all(rules)).join('\n').match(/(?<=^(:|-N ))KUBE-\S+/gm);
        };
        /**
         * Runs an agent until it serves and `isDone`.
         * @returns its warnings.
         */
        const agent = async (flags: readonly string[], isDone: () => boolean) => {
          log = [];
          const child = run(CAPABILITIES, flags);
          await waitFor('both families are served', () => {
            assert.equal(child.nodeChildProcess.exitCode, null, log.join('\n'));
            return log.filter((line) => line.includes('"serving"')).length === 2 && isDone();
          });
          for (const vip of VIPS) {
            assert.equal((await lab.client.tcp(vip, 5060)).outcome, 'answered');
          }
          child.kill('SIGTERM');
          await child;
          return warningsIn(log);
        };
        const removedIn = (families: number) => () =>
          log.filter(
            (line) => line.includes('removed leftover state') && line.includes('"what":"iptables"'),
          ).length === families;

        await init(mode);
        assert.equal(await isOpen(), true);
        assert.deepEqual(await agent(mode, () => true), []);
        // Only the agent's container is restarted, as after a change of the ConfigMap. The
        // kubelet's IPv6 chain of that name protects nothing.
        const ip6tables = isLegacy ? 'ip6tables-legacy' : 'ip6tables-nft';
        await lab.node.exec(ip6tables, ['-w', '-N', 'KUBE-FIREWALL']);
        const isTold = () => removedIn(2)() && log.some((line) => line.includes(ROUTE_LOCALNET));
        const warnings = await agent(NFTABLES, isTold);
        assert.equal(warnings.length, 1, warnings.join('\n'));
        assert.match(warnings[0] ?? '', /KUBE-FIREWALL.*Services are not affected.*--init-only/);
        assert.doesNotMatch(warnings[0] ?? '', /cleanup/);
        assert.deepEqual(await chains(), ['KUBE-FIREWALL']);
        assert.equal(await isOpen(), true);

        await init(NFTABLES);
        assert.equal(await isOpen(), false);
        assert.deepEqual(await agent(NFTABLES, removedIn(1)), []);
        assert.equal(await chains(), null);
      });

    if (mode[0].endsWith('nftables'))
      it('the agent works without NET_RAW, also beside tables of iptables-legacy', async () => {
        for (const command of ['iptables-legacy', 'ip6tables-legacy'])
          await lab.node.exec(command, ['-t', 'nat', '-N', 'FOREIGN']);
        const child = run(['NET_ADMIN'], [...mode, '--network-policy']);
        await waitFor('both families are served', () => {
          assert.equal(child.nodeChildProcess.exitCode, null, log.join('\n'));
          return log.filter((line) => line.includes('"serving"')).length === 2;
        });
        for (const vip of VIPS) {
          assert.equal((await lab.client.tcp(vip, 5060)).outcome, 'answered');
        }
        child.kill('SIGTERM');
        await child;
        assert.deepEqual(warningsIn(log), []);
      });

    // NET_RAW is needed only by iptables-legacy.
    for (const capability of CAPABILITIES.filter((each) => isLegacy || each !== 'NET_RAW')) {
      it(`the agent fails without ${capability}`, async () => {
        const others = CAPABILITIES.filter((each) => each !== capability);
        const child = run(others);
        await assert.rejects(child);
        assert.equal(child.nodeChildProcess.exitCode, 1, log.join('\n'));
        assert.match(log.join('\n'), /does not work on this node|needs CAP_NET_ADMIN/);
      });
    }
  });
}
