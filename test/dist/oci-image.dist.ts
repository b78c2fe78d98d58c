import assert from 'node:assert/strict';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { execa } from 'execa';
import { VERSION } from '../../process/version.ts';
import { sha256, sourceDate } from '../../scripts/dist/archive.ts';
import { RemoteDouble } from '../api-server/remote.ts';
import { ROOT, readObject } from '../deploy/manifests.ts';
import { ALL_PORTS, nodeManifest, serviceManifest, sliceManifest } from '../e2e/manifests.ts';
import { createLab, type Lab, waitFor } from '../lab/lab.ts';
import { ARCH, artefacts, DEADLINE, WORK } from './artefacts.ts';
import { CRUN, daemonSet, type ImageConfig, unpackImage, writeContainer } from './container.ts';

const MEGABYTE = 1_000_000;
const NAME = `portwide-${VERSION}-${ARCH}`;
const VIPS = ['10.96.0.10', 'fd00:10:96::10'];

describe('image: OCI archive', function () {
  this.timeout(DEADLINE);
  const directory = join(WORK, 'image');
  let built: string;
  let image: ImageConfig;
  const fileOf = (suffix: string) => join(built, `${NAME}.${suffix}`);

  before(async () => {
    built = await artefacts();
    image = await unpackImage(fileOf('oci.tar'), join(directory, 'container'));
  });

  it('is read by skopeo, with its labels', async () => {
    const { stdout } = await execa('skopeo', ['inspect', `oci-archive:${fileOf('oci.tar')}`]);
    const { Labels, Created, Architecture, Digest } = JSON.parse(stdout);
    const prefix = 'org.opencontainers.image.';
    assert.equal(Labels[`${prefix}title`], 'portwide');
    assert.equal(Labels[`${prefix}version`], VERSION);
    assert.match(Labels[`${prefix}revision`], /^[0-9a-f]{40}(-dirty)?$/);
    assert.ok(Labels[`${prefix}source`] && Labels[`${prefix}licenses`]);
    assert.equal(Labels[`${prefix}created`], Created);
    assert.equal(Date.parse(Created), (await sourceDate(ROOT)) * 1000);
    assert.equal(Architecture, ARCH);
    const { subject, predicate } = JSON.parse(readFileSync(fileOf('provenance.json'), 'utf8'));
    const digests = subject.map((each: { digest: { sha256: string } }) => each.digest.sha256);
    assert.deepEqual(digests, [
      sha256(readFileSync(fileOf('oci.tar'))),
      Digest.replace('sha256:', ''),
    ]);
    const [git] = predicate.buildDefinition.resolvedDependencies;
    assert.equal(git.digest.gitCommit, Labels[`${prefix}revision`]);
  });

  it('has at most 75 MB, unpacked 200 MB', async () => {
    assert.ok(readFileSync(fileOf('oci.tar')).length < 75 * MEGABYTE);
    const { stdout } = await execa('du', [
      '-s',
      '--block-size=1',
      join(directory, 'container/rootfs'),
    ]);
    assert.ok(Number.parseInt(stdout, 10) < 200 * MEGABYTE, stdout);
  });

  it('has licences, and neither npm nor nft, manuals and locales', () => {
    const has = (path: string) => existsSync(join(directory, 'container/rootfs', path));
    for (const name of ['iptables', 'libc6', 'dash', 'coreutils', 'util-linux']) {
      assert.ok(has(`usr/share/doc/${name}/copyright`), name);
      assert.ok(has(`var/lib/dpkg/status.d/${name}`), name);
    }
    const modules = 'opt/portwide/node_modules';
    for (const path of [
      'opt/portwide/LICENSE',
      'opt/portwide/bundle/LICENSES',
      `${modules}/node/LICENSE`,
      `${modules}/koffi/LICENSE.txt`,
    ]) {
      assert.ok(has(path), path);
    }
    for (const path of [
      'usr/share/man',
      'usr/share/locale',
      'usr/bin/apt',
      'usr/sbin/nft',
      `${modules}/npm`,
      `${modules}/node/include`,
      'var/cache',
      'var/log',
    ]) {
      assert.ok(!has(path), path);
    }
  });

  const tools = ['iptables', 'ip6tables'].flatMap((tool) =>
    ['', '-nft', '-legacy'].flatMap((variant) =>
      ['', '-save', '-restore'].map((action) => `${tool}${variant}${action}`),
    ),
  );
  const programs = [
    '/opt/portwide/portwide',
    'ipset',
    'conntrack',
    'kmod',
    'modprobe',
    'nsenter',
    ...tools,
  ];
  for (const program of programs) {
    it(`starts ${program}`, async () => {
      const env = Object.fromEntries(image.config.Env.map((each) => each.split('=')));
      const args = [join(directory, 'container/rootfs'), '/usr/bin/env', program, '--version'];
      const { stdout } = await execa('/usr/sbin/chroot', args, { env, extendEnv: false });
      assert.match(stdout, /\d/);
      const variant = /tables.*-(legacy)/.exec(program)?.[1] ?? 'nf_tables';
      if (program.includes('tables')) assert.match(stdout, new RegExp(`\\(${variant}\\)`));
    });
  }

  it('starts the DNS server for its user', async () => {
    const root = join(directory, 'container/rootfs');
    const args = ['--userspec=65532:65532', root, '/opt/portwide/portwide', 'dns', '--help'];
    const { stdout, stderr } = await execa('/usr/sbin/chroot', args, { env: {}, extendEnv: false });
    assert.match(stdout, /--forward/);
    assert.equal(stderr, '');
  });

  describe('in a container with the rights of the DaemonSet', () => {
    let lab: Lab;
    let log: string;
    const container = () => join(directory, 'container');

    before(async () => {
      lab = await createLab({ pods: 1 });
      await lab.pods[0]?.serveEveryPort();
      const double = await RemoteDouble.start(lab.node.spawn);
      await double.call(
        'put',
        nodeManifest([lab.node.ipv4, lab.node.ipv6]),
        serviceManifest('all', { annotations: ALL_PORTS, spec: { clusterIPs: VIPS } }),
        ...([4, 6] as const).map((family) => sliceManifest('all', family, lab.pods)),
      );
      const { data } = readObject<{ data: Record<string, string> }>(
        'deploy/base/config.yaml',
        'ConfigMap',
      );
      const config = join(directory, 'config');
      mkdirSync(config);
      writeFileSync(join(directory, 'lock'), '');
      const settings = (data['config.conf'] ?? '')
        .replace('clusterCIDR: ""', 'clusterCIDR: 10.244.0.0/16,fd00:10:244::/48')
        // Neither belongs to a network namespace.
        .replace('oomScoreAdj: -997', 'oomScoreAdj: 0\nconntrack: {maxPerCore: 0}');
      writeFileSync(join(config, 'config.conf'), settings);
      const server = (data['kubeconfig.conf'] ?? '')
        .replace('https://api-server.invalid:6443', double.url)
        .replace(/^.*(certificate-authority|tokenFile):.*\n/gm, '')
        .replace('user:\n', 'user: {}\n');
      writeFileSync(join(config, 'kubeconfig.conf'), server);
    });
    after(async () => {
      await lab?.node.exec('sh', [...CRUN, 'delete', '--force', lab.id]);
      await lab?.destroy();
    });

    /** Starts a container whose output becomes `log`. */
    const run = (spec: ReturnType<typeof daemonSet>['agent']) => {
      const volumes = {
        config: join(directory, 'config'),
        'xtables-lock': join(directory, 'lock'),
      };
      writeContainer(container(), image, spec, lab.node.namespace, volumes);
      log = '';
      const args = ['run', '--bundle', container(), lab.id];
      const child = lab.node.spawn('sh', [...CRUN, ...args]);
      for (const stream of [child.stdout, child.stderr]) {
        stream?.on('data', (chunk) => {
          log += String(chunk);
        });
      }
      return child;
    };

    it('serves every port of a Service', async () => {
      const { init, agent } = daemonSet();
      await run(init).catch((error: unknown) => assert.fail(`${error}\n${log}`));
      const child = run(agent);
      await waitFor(
        'both families are served',
        () => {
          assert.equal(child.nodeChildProcess.exitCode, null, log);
          return log.split('"serving"').length === 3;
        },
        60_000,
      );
      for (const vip of VIPS) {
        for (const port of [22, 5060, 65_535]) {
          const outcome = await lab.client.tcp(vip, port);
          assert.equal(outcome.outcome, 'answered', `${vip} ${port} ${JSON.stringify(outcome)}`);
        }
      }
      // As `kubectl portwide` does.
      const exec = ['env', 'PORTWIDE_WATCH_STDIN=1', '/opt/portwide/portwide', 'get', 'services'];
      const { stdout } = await lab.node.exec('sh', [...CRUN, 'exec', lab.id, ...exec]);
      assert.match(stdout, /all/);
      await lab.node.exec('sh', [...CRUN, 'kill', lab.id, 'TERM']);
      await child;
      assert.doesNotMatch(log, /"level":(40|50|60)/);
    });
  });
});
