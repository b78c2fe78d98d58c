import type { IpFamily } from '../../api/objects.ts';
import type { BaseOptions } from '../../iptables/base-rules.ts';

/** Options of `portwide run --cluster-cidr …`. */
export function options(fields: Partial<BaseOptions> = {}): BaseOptions {
  const family: IpFamily = fields.family ?? 'IPv4';
  return {
    family,
    masqueradeAll: false,
    masqueradeBit: 14,
    localDetector: { kind: 'cidr', cidr: family === 'IPv4' ? '10.244.0.0/16' : 'fd00:10:244::/48' },
    nodeAddresses: [],
    resetsTcp: false,
    nodePortAddresses: 'all',
    localhostNodePorts: family === 'IPv4',
    dropInvalid: true,
    randomFully: true,
    ...fields,
  };
}
