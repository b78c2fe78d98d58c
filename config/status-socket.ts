/** Where the agent serves the status API by default. A module of its own: commands must start fast. */
export const DEFAULT_STATUS_SOCKET = '/run/portwide/portwide.sock';
