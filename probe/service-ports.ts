/** The ports that `portwide probe` probes of a Service without `--ports`. Pure. */
import { PROBE_PROTOCOLS, type ProbeProtocol } from './outcome.ts';

/** Ports to probe with the same protocols; `ports` is a value of `--ports`. */
export interface PortSelection {
  readonly ports: string;
  readonly protocols: readonly ProbeProtocol[];
}

/**
 * @param served such as `80/TCP`, `80:30080/TCP` and `20000-20999/UDP (100 per pod)`, as in the status API.
 * @returns undefined if the Service serves all ports; an empty list if no port has one of `protocols`.
 */
export function servicePorts(
  served: readonly string[],
  protocols: readonly ProbeProtocol[] = PROBE_PROTOCOLS,
): PortSelection[] | undefined {
  if (served.includes('all')) return undefined;
  const byPort = new Map<string, ProbeProtocol[]>();
  for (const text of served.flatMap((each) => each.split(','))) {
    const [, ports = '', given] = /^([\d-]+)(?::\d+)?\/(\w+)/.exec(text) ?? [];
    const protocol = protocols.find((each) => each === given);
    if (protocol === undefined) continue;
    byPort.set(ports, [...(byPort.get(ports) ?? []), protocol]);
  }
  const groups = Map.groupBy(byPort, ([, its]) => its.toSorted().join());
  return [...groups.values()].map((group) => ({
    ports: group.map(([ports]) => ports).join(),
    protocols: protocols.filter((each) => group[0]?.[1].includes(each)),
  }));
}
