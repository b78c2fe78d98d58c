import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { execa } from 'execa';
import { VERSION } from '../../process/version.ts';
import { createLab, type Lab } from '../lab/lab.ts';
import { PORTWIDE } from '../portwide.ts';

const HASHED = 'portwide.dev/load-balancing: consistent-hash';

/** Its pods own ports; the endpoint has no ordinal. */
const withOwnedPorts = (portsPerPod: string) =>
  SIP.replace(
    /portwide\.dev\/ports: .*/,
    `portwide.dev/owned-ports: 20000-20999/UDP\n    portwide.dev/ports-per-pod: "${portsPerPod}"`,
  );
const SIP = `apiVersion: v1
kind: Service
metadata:
  name: sip
  annotations:
    portwide.dev/ports: 5060/UDP,20000-20100/UDP
spec:
  clusterIPs: [10.96.0.10, "fd00:10:96::a"]
  ports: [{port: 1}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: sip-1
  labels: {kubernetes.io/service-name: sip}
addressType: IPv4
ports: []
endpoints:
  - addresses: [10.244.0.5]
    nodeName: node
`;
const POD = `apiVersion: v1
kind: Pod
metadata: {name: sip}
spec: {}
status: {podIPs: [{ip: 10.244.0.5}]}
`;
const WEB = `apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.11
  loadBalancerSourceRanges: [192.0.2.0/24]
  ports: [{name: http, port: 80, nodePort: 30080}]
status:
  loadBalancer: {ingress: [{ip: 203.0.113.1}]}
`;

const POLICIES = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web, namespace: shop}
spec:
  podSelector: {}
  ingress:
    - ports: [{port: 90, endPort: 80}]
    - ports: [{protocol: UDP, endPort: 80}]
  policyTypes: [Ingress]
# the next
---
apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata: {name: names}
spec:
  priority: 1
  subject: {namespaces: {}}
  egress:
    - {action: Deny, to: [{domainNames: [example.com]}]}
---
apiVersion: policy.networking.k8s.io/v1alpha1
kind: CIDRGroup
metadata: {name: cloud}
spec: {cidrs: [10.0.0.0/8, 192.0.2.1]}
`;

const run = (...args: string[]) => execa(PORTWIDE, args, { reject: false });

describe('commands: portwide', () => {
  let directory: string;
  const put = (name: string, text: string) => writeFileSync(join(directory, name), text);
  beforeEach(() => {
    directory = mkdtempSync(join(tmpdir(), 'portwide-cmd-'));
  });
  afterEach(() => rmSync(directory, { recursive: true, force: true }));

  it('version prints the version', async () => {
    assert.equal((await run('version')).stdout, VERSION);
  });

  describe('run rejects, before it changes anything,', () => {
    for (const [flags, expected] of [
      [['--no-such-flag'], /--no-such-flag/],
      [['--proxy-mode=userspace'], /--proxy-mode.*iptables/],
      [['--cluster-cidr=10.0.0.0/33'], /--cluster-cidr.*must be a CIDR/],
      [['--cluster-cidr=10.0.0.0/8,10.1.0.0/16'], /--cluster-cidr.*at most one/],
      [['--detect-local-mode=Magic'], /--detect-local-mode/],
      [['--detect-local-mode=BridgeInterface'], /--pod-bridge-interface/],
      [['--detect-local-mode=InterfaceNamePrefix'], /--pod-interface-name-prefix/],
      [['--pod-bridge-interface=a b'], /--pod-bridge-interface/],
      [['--nodeport-addresses=primary,10.0.0.0'], /--nodeport-addresses.*10\.0\.0\.0/],
      [['--iptables-masquerade-bit=32'], /--iptables-masquerade-bit.*0 to 31/],
      [['--masquerade-all=maybe'], /--masquerade-all.*true or false/],
      [['--iptables-sync-period=fast'], /--iptables-sync-period.*duration/],
      [['--iptables-sync-period=0'], /--iptables-sync-period/],
      [['--iptables-min-sync-period=1m'], /--iptables-min-sync-period/],
      [['--feature-gates=noPorts=true'], /--feature-gates.*noPorts/],
      [['--feature-gates=AllPorts=yes'], /--feature-gates.*AllPorts/],
      [['--hostname-override=a b'], /--hostname-override/],
      [['--metrics-bind-address=here'], /--metrics-bind-address/],
      [['--healthz-bind-address=here'], /--healthz-bind-address/],
      [
        ['--manifests=/nowhere', '--kubeconfig=x'],
        /--manifests: cannot be combined with --kubeconfig/,
      ],
      [['--kubeconfig=/no/such/file'], /kubeconfig "\/no\/such\/file" cannot be read: ENOENT/],
      [['surplus'], /argument/],
    ] as const) {
      it(flags.join(' '), async () => {
        // In its own network namespace, in case it starts.
        const command = ['--net', PORTWIDE, 'run', ...flags];
        const options = { reject: false, timeout: 30_000 };
        const { exitCode, stderr, stdout } = await execa('unshare', command, options);
        assert.equal(exitCode, 1);
        assert.match(stderr, expected);
        assert.equal(stdout, '');
      });
    }
  });

  describe('dns rejects, before it listens,', () => {
    for (const [flags, expected] of [
      [['--no-such-flag'], /--no-such-flag/],
      [['--ttl=long', '--port=0'], /--port: .*\nportwide: --ttl: /],
      [['--manifests=/no/such/directory'], /manifest directory "\/no\/such\/directory"/],
      [['--manifests=/', '--forward=/no/such/file'], /--forward: ENOENT/],
      [
        ['--manifests=/', '--forward=/dev/null'],
        /--forward: \/dev\/null has no valid nameserver line/,
      ],
      [['--kubeconfig=/no/such/file'], /kubeconfig "\/no\/such\/file" cannot be read: ENOENT/],
    ] as const) {
      it(flags.join(' '), async () => {
        const command = ['--net', PORTWIDE, 'dns', ...flags];
        const options = { reject: false, timeout: 30_000 };
        const { exitCode, stderr, stdout } = await execa('unshare', command, options);
        assert.deepEqual([exitCode, stdout], [1, '']);
        assert.match(stderr, expected);
      });
    }
  });

  describe('validate', () => {
    it('prints file, line, object, field and reason of each fault, and exits with 1', async () => {
      put('a.yaml', SIP);
      const bad = SIP.replaceAll('name: sip', 'name: bad').replace('5060/UDP', '0/UDP');
      // A refused Service has its cluster IPs, too.
      put('b.yaml', bad.replaceAll('10.96.0.10', '10.96.0.11').replaceAll('::a', '::b'));
      put('c.yaml', `# a comment\n${WEB.replace('port: 80', 'port: 80000')}`);
      const { exitCode, stdout } = await run('validate', `--manifests=${directory}`);
      assert.equal(exitCode, 1);
      assert.deepEqual(stdout.split('\n'), [
        `${directory}/b.yaml:1: Service default/bad: metadata.annotations["portwide.dev/ports"]: "0/UDP": ports are 1 to 65535`,
        `${directory}/c.yaml:2: Service default/web: spec.ports[0].port: must be an integer from 1 to 65535, not 80000`,
      ]);
    });

    it('prints each fault that makes a policy rule fail closed', async () => {
      put('a.yaml', POLICIES);
      const { exitCode, stdout } = await run('validate', `--manifests=${directory}`);
      assert.equal(exitCode, 1);
      assert.deepEqual(stdout.split('\n'), [
        `${directory}/a.yaml:1: NetworkPolicy shop/web: spec.ingress[0].ports[0].endPort: must not be less than port 90, but is 80`,
        `${directory}/a.yaml:1: NetworkPolicy shop/web: spec.ingress[1].ports[0].endPort: must not be set without a port`,
        `${directory}/a.yaml:12: AdminNetworkPolicy names: spec.egress[0].to: must not have domainNames: only an Allow rule can have them`,
        `${directory}/a.yaml:21: CIDRGroup cloud: spec.cidrs[1]: must be a CIDR such as 10.0.0.0/8, not "192.0.2.1"`,
      ]);
    });

    it('exits with 0 when there are no faults', async () => {
      put('a.yaml', SIP);
      put(
        'b.yaml',
        POLICIES.replaceAll('endPort: 80', 'port: 80')
          .replace('port: 90, ', '')
          .replace('Deny', 'Allow')
          .replace('.1]', '.0/24]'),
      );
      const { exitCode, stdout } = await run('validate', `--manifests=${directory}`);
      assert.deepEqual([exitCode, stdout], [0, '5 objects, no faults']);
    });

    it('reports a Service without ports, like an API server, unless it needs none', async () => {
      const without = (name: string, spec: string, metadata = '') =>
        `apiVersion: v1\nkind: Service\nmetadata: {name: ${name}${metadata}}\nspec: {${spec}}\n`;
      put(
        'a.yaml',
        [
          without('none', 'clusterIP: 10.96.0.40'),
          without('empty', 'clusterIP: 10.96.0.41, ports: []'),
          without('all', 'clusterIP: 10.96.0.42', ', annotations: {portwide.dev/ports: all}'),
          without('field', 'clusterIP: 10.96.0.43, allPorts: true'),
          without('headless', 'clusterIP: None'),
          without('alias', 'type: ExternalName, externalName: example.com'),
        ].join('---\n'),
      );
      const { exitCode, stdout } = await run('validate', `--manifests=${directory}`);
      assert.equal(exitCode, 1);
      const reason =
        'spec.ports: must not be empty without spec.allPorts: true; with annotation portwide.dev/ports, add a placeholder port';
      assert.deepEqual(
        stdout.split('\n'),
        ['1: Service default/none', '6: Service default/empty', '11: Service default/all'].map(
          (object) => `${directory}/a.yaml:${object}: ${reason}`,
        ),
      );
    });

    it('reports a duplicate domain name, like an API server', async () => {
      const twice = POLICIES.replace('Deny', 'Allow').replace(
        /domainNames: \[.*?\]/,
        'domainNames: [a.test, b.test, a.test]',
      );
      put('a.yaml', twice.slice(twice.indexOf('---\n') + 4));
      const { exitCode, stdout } = await run('validate', `--manifests=${directory}`);
      assert.equal(exitCode, 1);
      assert.match(stdout, /spec\.egress\[0\]\.to\[0\]\.domainNames\[2\]: must not be repeated/);
    });

    it('reports owned ports that cannot be cut into slices, and warns of endpoints without pod or ordinal', async () => {
      put('a.yaml', withOwnedPorts('1001'));
      const faulty = await run('validate', `--manifests=${directory}`);
      assert.equal(faulty.exitCode, 1);
      assert.match(
        faulty.stdout,
        /owned-ports"\]: 20000-20999\/UDP has fewer ports than a pod gets \(portwide\.dev\/ports-per-pod: 1001\)/,
      );
      put('a.yaml', withOwnedPorts('100'));
      const warned = async (because: string) => {
        const { exitCode, stdout } = await run('validate', `--manifests=${directory}`);
        assert.equal(exitCode, 0);
        const warning = `^warning: .*: Service default/sip: endpoints own no ports, because ${because}`;
        assert.match(stdout, new RegExp(warning, 'm'));
      };
      await warned(
        'no Pod of their namespace has their address in status.podIPs; .* add their Pods',
      );
      put('b.yaml', POD);
      await warned('their pod names have no ordinal');
      put('b.yaml', POD.replace('spec: {}', 'spec: {hostNetwork: true}'));
      await warned('they are on the host network');
    });

    it('reports a Service that claims the cluster IP of another, and warns of it', async () => {
      const intruder = WEB.replace('name: web', 'name: web, namespace: evil')
        .replace('clusterIP: 10.96.0.11', 'clusterIP: 10.96.0.12\n  externalIPs: [10.96.0.11]')
        .replace('nodePort: 30080', 'nodePort: 30081')
        .replace('203.0.113.1', '203.0.113.2');
      put('a.yaml', WEB);
      put('b.yaml', intruder);
      const { exitCode, stdout } = await run('validate', `--manifests=${directory}`);
      assert.equal(exitCode, 1);
      assert.deepEqual(stdout.split('\n'), [
        `${directory}/b.yaml:1: Service evil/web: spec.externalIPs: 10.96.0.11: is the cluster IP of Service default/web, and no other Service gets a port of it`,
        `warning: ${directory}/a.yaml:1: Service default/web: 10.96.0.11: Services of namespace evil request ports of this VIP that belong to Service default/web, and are refused; ask the owner of the namespace to remove the address`,
      ]);
    });

    it('reports an unknown way of load balancing', async () => {
      put('a.yaml', SIP.replace('portwide.dev/ports', `${HASHED}ing\n    portwide.dev/ports`));
      const { exitCode, stdout } = await run('validate', `--manifests=${directory}`);
      assert.equal(exitCode, 1);
      assert.match(stdout, /load-balancing"\]: must be random, consistent-hash or /);
    });

    it('warns about unknown portwide.dev/ annotations, and exits with 0', async () => {
      put('a.yaml', SIP.replace('portwide.dev/ports', 'portwide.dev/port'));
      const { exitCode, stdout } = await run('validate', `--manifests=${directory}`);
      assert.equal(exitCode, 0);
      assert.deepEqual(stdout.split('\n'), [
        `warning: ${directory}/a.yaml:1: Service default/sip: metadata.annotations["portwide.dev/port"]: unknown annotation, ignored; set portwide.dev/ports to serve all ports or port ranges`,
        `warning: ${directory}/a.yaml:11: EndpointSlice default/sip-1: ports: no numbered port matches name and protocol of a port of Service default/sip (unnamed TCP), so this slice is not used; name the ports as in the Service`,
        '2 objects, no faults',
      ]);
    });

    it('warns about Services and EndpointSlices that do not match, and exits with 0', async () => {
      const slice = (name: string, labels: string, ports: string) =>
        `---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: ${name}, labels: {${labels}}}\naddressType: IPv4\nports: [${ports}]\nendpoints: [{addresses: [10.244.0.6]}]\n`;
      const of = (service: string) => `kubernetes.io/service-name: ${service}`;
      put(
        'a.yaml',
        [
          WEB.replace('  clusterIP: 10.96.0.11\n', ''),
          `---\n${WEB.replace('{name: web}', '{name: shop}').replace('nodePort: 30080', 'nodePort: 30081')}`,
          slice('shop-1', of('shop'), '{name: https, port: 8080}'),
          slice('lost', of('nobody'), '{name: http, port: 8080}'),
          slice('unlabelled', '', '{name: http, port: 8080}'),
        ].join(''),
      );
      const { exitCode, stdout } = await run('validate', `--manifests=${directory}`);
      assert.equal(exitCode, 0);
      const warnings = stdout
        .split('\n')
        .filter((line) => !line.includes('loadBalancerSourceRanges'))
        .map((line) => line.replace(`warning: ${directory}/a.yaml:`, ''));
      assert.deepEqual(warnings, [
        '1: Service default/web: spec.clusterIPs: no cluster IP, so the Service is not served, not even on its node ports and load balancer IPs; an API server assigns a cluster IP, but a manifest must set it',
        '22: EndpointSlice default/shop-1: ports: no numbered port matches name and protocol of a port of Service default/shop ("http" TCP), so this slice is not used; name the ports as in the Service',
        '29: EndpointSlice default/lost: metadata.labels["kubernetes.io/service-name"]: Service default/nobody does not exist, so this slice is not used; correct the name or add the Service',
        '36: EndpointSlice default/unlabelled: metadata.labels["kubernetes.io/service-name"]: is missing, so the slice belongs to no Service; set the label to the name of a Service',
        '4 objects, no faults',
      ]);
    });

    it('prints the number of skipped objects by kind', async () => {
      const object = (kind: string) => `apiVersion: v1\nkind: ${kind}\nmetadata: {name: a}\n`;
      const policy = (kind: string) => `${object(kind)}spec: {podSelector: {}}\n`;
      put('a.yaml', `${SIP}---\n${policy('NetworkPolcy')}---\n${object('Deployment')}`);
      put('b.yaml', `${policy('NetworkPolcy')}---\n${policy('networkpolicy')}`);
      const { exitCode, stdout } = await run('validate', `--manifests=${directory}`);
      assert.equal(exitCode, 0);
      assert.equal(
        stdout,
        '2 objects, no faults\nskipped kinds: 2 NetworkPolcy, 1 Deployment, 1 networkpolicy',
      );
      put('c.yaml', '- 1');
      const faulty = await run('validate', `--manifests=${directory}`);
      assert.equal(faulty.exitCode, 1);
      assert.match(faulty.stdout, /c\.yaml:1: .*\nskipped kinds: 2 NetworkPolcy, 1 Deployment, /);
    });

    it('exits with 2 when the directory is missing', async () => {
      const { exitCode, stderr } = await run('validate', '--manifests=/no/such/directory');
      assert.equal(exitCode, 2);
      assert.match(stderr, /^portwide: manifest directory "\/no\/such\/directory" cannot be read/);
    });
  });

  describe('render', () => {
    let lab: Lab;
    before(async () => {
      lab = await createLab({ pods: 0, remotePods: 0 });
    });
    after(async () => lab?.destroy());

    for (const variant of ['nft', 'legacy']) {
      for (const [family, command] of [
        ['IPv4', 'iptables'],
        ['IPv6', 'ip6tables'],
      ] as const) {
        it(`prints rules that ${command}-${variant}-restore --test accepts`, async () => {
          put('a.yaml', SIP);
          put('b.yaml', WEB);
          const flags = [
            `--manifests=${directory}`,
            '--proxy-mode=iptables',
            `--ip-family=${family}`,
          ];
          const { stdout, exitCode } = await run('render', ...flags);
          assert.equal(exitCode, 0);
          assert.match(stdout, /KUBE-SERVICES/);
          const input = { input: `${stdout}\n` };
          await lab.node.exec(`${command}-${variant}-restore`, ['--test'], input);
        });
      }
    }

    it('prints the same rules every time and for every node name', async () => {
      put('a.yaml', SIP);
      put('b.yaml', WEB);
      const render = (name: string) =>
        run('render', `--manifests=${directory}`, `--hostname-override=${name}`);
      const [one, two, other] = await Promise.all([render('a'), render('a'), render('b')]);
      assert.equal(one.stdout, two.stdout);
      assert.equal(one.stdout, other.stdout);
    });

    it('serves node ports on --bind-address with --nodeport-addresses=primary', async () => {
      put('b.yaml', WEB);
      const { stdout } = await run(
        'render',
        `--manifests=${directory}`,
        '--proxy-mode=iptables',
        '--nodeport-addresses=primary',
        '--bind-address=192.0.2.77',
      );
      assert.match(stdout, /-d 192\.0\.2\.77\/32 .*KUBE-NODEPORTS/);
      const nftables = await run('render', `--manifests=${directory}`, '--bind-address=192.0.2.77');
      assert.match(nftables.stdout, /^add element ip portwide node-port-ips \{ 192\.0\.2\.77 \}$/m);
    });

    it('notes on stderr that only mode nftables serves owned ports', async () => {
      put('a.yaml', withOwnedPorts('100'));
      for (const mode of ['iptables', 'ipvs', 'nftables']) {
        const { stdout, stderr, exitCode } = await run(
          'render',
          `--manifests=${directory}`,
          `--proxy-mode=${mode}`,
        );
        assert.equal(exitCode, 0);
        const isServed = mode === 'nftables';
        assert.equal(
          stderr,
          isServed
            ? stderr
            : `Service default/sip: metadata.annotations["portwide.dev/owned-ports"]: mode ${mode} cannot serve ports owned by pods; use mode nftables`,
        );
        assert.equal(stdout.includes('10.96.0.10'), isServed, mode);
      }
    });

    it('notes on stderr that only mode nftables hashes clients', async () => {
      put('a.yaml', SIP.replace('portwide.dev/ports', `${HASHED}\n    portwide.dev/ports`));
      for (const mode of ['iptables', 'ipvs', 'nftables']) {
        const directoryAndMode = [`--manifests=${directory}`, `--proxy-mode=${mode}`];
        const { stdout, stderr, exitCode } = await run('render', ...directoryAndMode);
        const isServed = mode === 'nftables';
        const refusal = `Service default/sip: metadata.annotations["portwide.dev/load-balancing"]: mode ${mode} cannot hash clients; use mode nftables`;
        assert.deepEqual([exitCode, stderr], [0, isServed ? '' : refusal]);
        assert.equal(stdout.includes('10.96.0.10'), isServed, mode);
      }
    });

    it('notes on stderr Services that are not served', async () => {
      put('a.yaml', SIP.replace('ports: [{port: 1}]', 'ports: [{port: 1}]\n  type: NodePort'));
      const { stderr, exitCode } = await run('render', `--manifests=${directory}`);
      assert.equal(exitCode, 0);
      assert.match(stderr, /Service default\/sip: spec.type: a NodePort Service cannot/);
    });
  });
});
