/** Flags that choose an action. They have no field in the configuration file. */
import { boolean, file, integer, optional } from './kinds.ts';
import { setting } from './setting.ts';

const group = 'command';
const port = integer(0, 65535, '<port>');

export const COMMAND_SETTINGS = {
  config: setting(group, {
    kind: optional(file),
    default: undefined,
    winsOverFile: true,
    text: 'KubeProxyConfiguration (kubeproxy.config.k8s.io/v1alpha1) in YAML or JSON; with it, most flags are ignored',
  }),
  writeConfigTo: setting(group, {
    kind: optional(file),
    default: undefined,
    winsOverFile: true,
    text: 'write the complete configuration, with defaults, to this file and exit',
  }),
  cleanup: setting(group, {
    kind: boolean,
    default: false,
    winsOverFile: true,
    text: 'remove everything that Portwide and kube-proxy put on this node and exit',
    more: 'Same as `portwide cleanup`.',
  }),
  initOnly: setting(group, {
    kind: boolean,
    default: false,
    winsOverFile: true,
    text: 'set what CAP_NET_ADMIN does not allow (sysctls, conntrack limits) and exit',
    more: 'For an init container. It writes no rules except those of `KUBE-FIREWALL`, before it enables node ports on 127.0.0.1: they keep neighbours from 127.0.0.1 (CVE-2020-8558).',
  }),
  healthzPort: setting('servers', {
    kind: port,
    default: 10256,
    text: 'deprecated: port of /healthz if --healthz-bind-address has none; 0: not served',
  }),
  metricsPort: setting('servers', {
    kind: port,
    default: 10249,
    text: 'deprecated: port of /metrics if --metrics-bind-address has none; 0: not served',
  }),
};
