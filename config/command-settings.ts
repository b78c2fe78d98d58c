/** Flags that say what to do rather than how; no file has them. */
import { boolean, file, integer, optional } from './kinds.ts';
import { setting } from './setting.ts';

const group = 'command';
const port = integer(0, 65535, '<port>');

export const COMMAND_SETTINGS = {
  config: setting({
    group,
    kind: optional(file),
    default: undefined,
    winsOverFile: true,
    text: 'KubeProxyConfiguration (kubeproxy.config.k8s.io/v1alpha1) in YAML or JSON; most flags are ignored then',
  }),
  writeConfigTo: setting({
    group,
    kind: optional(file),
    default: undefined,
    winsOverFile: true,
    text: 'write the configuration, complete with defaults, to this file, and end',
  }),
  cleanup: setting({
    group,
    kind: boolean,
    default: false,
    winsOverFile: true,
    text: 'remove everything that Portwide or kube-proxy put on this node, and end',
    more: 'As `portwide cleanup` does.',
  }),
  initOnly: setting({
    group,
    kind: boolean,
    default: false,
    winsOverFile: true,
    text: 'set what needs more rights than CAP_NET_ADMIN (sysctls, conntrack limits), and end',
    more: 'For an init container. Before node ports on 127.0.0.1 are opened, the rules of `KUBE-FIREWALL` are written that keep neighbours out (CVE-2020-8558), and no others.',
  }),
  healthzPort: setting({
    group: 'servers',
    kind: port,
    default: 10256,
    text: 'deprecated: port for a --healthz-bind-address without one; 0: no server',
  }),
  metricsPort: setting({
    group: 'servers',
    kind: port,
    default: 10249,
    text: 'deprecated: port for a --metrics-bind-address without one; 0: no server',
  }),
};
