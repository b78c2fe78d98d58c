/** The command line of a live trace. Pure. */

/** `DEFAULT_STATUS_SOCKET` of config/status-socket.ts, which a browser cannot load. */
export const DEFAULT_SOCKET = '/run/portwide/portwide.sock';

/**
 * The command after `portwide`.
 * @param {URLSearchParams} parameters valid parameters of a trace.
 * @param {string | null | undefined} socket of the agent; null: it has none.
 */
export function traceCommand(parameters, socket) {
  /** @param {string} flag @param {string} name */
  const option = (flag, name) => {
    const value = parameters.get(name);
    return value === null ? [] : [`${flag}=${value.toLowerCase()}`];
  };
  const isDefault = socket === undefined || socket === null || socket === DEFAULT_SOCKET;
  return [
    'trace',
    ...[parameters.get('from'), parameters.get('to')],
    ...option('--proto', 'protocol'),
    ...option('--port', 'port'),
    '--live',
    ...(isDefault ? [] : [`--status-socket=${quoted(socket)}`]),
  ].join(' ');
}

/** For a shell. @param {string} text */
function quoted(text) {
  return /^[\w./:@%+,=-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}
