/** DNS queries from a host's thread. */
import type { SrvRecord } from 'node:dns';
import { Resolver } from 'node:dns/promises';
import type { ResolveRequest } from './messages.ts';
import type { LookupResult } from './outcomes.ts';

/** Sends one query to one server. */
export async function resolve(request: ResolveRequest): Promise<LookupResult> {
  const { server, name, type, timeoutMs } = request;
  // c-ares opens its sockets in the calling thread, which is in the host's namespace.
  const resolver = new Resolver({ timeout: timeoutMs, tries: 1 });
  resolver.setServers([server]);
  try {
    if (type === 'SRV') return { answers: (await resolver.resolveSrv(name)).map(shown) };
    return { answers: await (type === 'A' ? resolver.resolve4(name) : resolver.resolve6(name)) };
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === undefined) throw error;
    return { code };
  }
}

function shown({ name, port }: SrvRecord): string {
  return `${name} port ${port}`;
}
