/** Certificates of a cluster: names as Kubernetes requires them, made by openssl. */
import { join } from 'node:path';
import { CONTROL_ADDRESS, KUBERNETES_ADDRESS, type Layout } from './layout.ts';
import { file, run, type Step } from './steps.ts';

interface Identity {
  /** Name of the files. */
  readonly name: string;
  readonly subject: string;
  /** Names and addresses of a server. */
  readonly alternatives?: readonly string[];
}

/** The identities of a cluster: the API server reads user and groups from CN and O. */
export function identities({ nodes }: Layout): Identity[] {
  return [
    {
      name: 'apiserver',
      subject: '/CN=kube-apiserver',
      alternatives: [
        ...['', '.default', '.default.svc', '.default.svc.cluster.local'].map(
          (suffix) => `DNS:kubernetes${suffix}`,
        ),
        ...['127.0.0.1', CONTROL_ADDRESS, KUBERNETES_ADDRESS].map((address) => `IP:${address}`),
      ],
    },
    { name: 'apiserver-kubelet-client', subject: '/O=system:masters/CN=apiserver-kubelet-client' },
    { name: 'admin', subject: '/O=system:masters/CN=admin' },
    // Without credentials of their own, the controllers need the rights of all of them.
    { name: 'controller-manager', subject: '/O=system:masters/CN=system:kube-controller-manager' },
    { name: 'scheduler', subject: '/CN=system:kube-scheduler' },
    { name: 'kube-proxy', subject: '/CN=system:kube-proxy' },
    // The user that a pod of the DaemonSet is, so that deploy/ decides its rights.
    { name: 'portwide', subject: '/CN=system:serviceaccount:kube-system:portwide' },
    ...nodes.map(({ name, address }) => ({
      name,
      subject: `/O=system:nodes/CN=system:node:${name}`,
      alternatives: [`DNS:${name}`, `IP:${address}`],
    })),
  ];
}

export function certificateSteps(layout: Layout): Step[] {
  const path = (name: string) => join(layout.directory, 'pki', name);
  const openssl = (...args: readonly string[]) => run('machine', 'openssl', ...args);
  const validity = ['-days', '30', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1'];
  const create = (name: string, ...args: string[]) =>
    openssl(
      ...['req', '-x509', ...args, ...validity, '-nodes'],
      ...['-keyout', path(`${name}.key`), '-out', path(`${name}.crt`)],
    );
  const accounts = (end: string) => path(`service-accounts.${end}`);
  const signed = ['-CA', path('ca.crt'), '-CAkey', path('ca.key')];
  return [
    run('machine', 'mkdir', '-p', path('')),
    create('ca', '-subj', '/CN=portwide-cluster'),
    ...identities(layout).map(({ name, subject, alternatives = [] }) =>
      create(
        name,
        ...signed,
        ...['-subj', subject, '-addext', 'basicConstraints=critical,CA:FALSE'],
        ...(alternatives.length > 0 ? ['-addext', `subjectAltName=${alternatives.join(',')}`] : []),
      ),
    ),
    openssl('genpkey', '-algorithm', 'RSA', '-out', accounts('key')),
    openssl('pkey', '-in', accounts('key'), '-pubout', '-out', accounts('pub')),
    ...identities(layout)
      .filter(({ name }) => !name.startsWith('apiserver'))
      .map(({ name }) =>
        file(join(layout.directory, `${name}.kubeconfig`), kubeconfig(name, path)),
      ),
  ];
}

function kubeconfig(user: string, path: (name: string) => string): string {
  return `apiVersion: v1
kind: Config
clusters:
  - name: default
    cluster: {server: "https://${CONTROL_ADDRESS}:6443", certificate-authority: "${path('ca.crt')}"}
users:
  - name: default
    user: {client-certificate: "${path(`${user}.crt`)}", client-key: "${path(`${user}.key`)}"}
contexts:
  - name: default
    context: {cluster: default, user: default}
current-context: default
`;
}
