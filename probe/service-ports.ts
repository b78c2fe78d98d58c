/** The ports that `portwide probe` probes of a Service without `--ports`. Pure. */
import { PROBE_PROTOCOLS, type ProbeProtocol } from './outcome.ts';

/** The ports of a protocol; `ports` is a value of `--ports`. */
export interface ProtocolPorts {
  readonly protocol: ProbeProtocol;
  readonly ports: string;
}

/**
 * @param served such as `80/TCP`, `80:30080/TCP` and `20000-20999/UDP (100 per pod)`, as in the status API.
 * @returns undefined if the Service serves all ports; an empty list if no port has one of `protocols`.
 */
export function servicePorts(
  served: readonly string[],
  protocols: readonly ProbeProtocol[] = PROBE_PROTOCOLS,
): ProtocolPorts[] | undefined {
  if (served.includes('all')) return undefined;
  const all = served
    .flatMap((each) => each.split(','))
    .map((text) => {
      const [, ports = '', protocol] = /^([\d-]+)(?::\d+)?\/(\w+)/.exec(text) ?? [];
      return { ports, protocol };
    });
  return protocols.flatMap((protocol) => {
    const its = all.filter((each) => each.protocol === protocol);
    const ports = [...new Set(its.map((each) => each.ports))];
    return ports.length > 0 ? [{ protocol, ports: ports.join() }] : [];
  });
}
